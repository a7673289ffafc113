"""The thread with the event loop of the data plane.

Serve runs user code on a loop of plain asyncio that it also uses for health checks; the data plane has a
uvloop of its own, so that neither waits for the other.
"""

import asyncio
import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import uvloop

from app.transport.loops.borrowable import BorrowableLoop

T = TypeVar("T")

_YOUNG_OBJECTS: Final = 20_000
"""New objects after which the garbage collector examines the youngest generation."""
_COLLECT_EVERY_S: Final = 5.0
_IDLE_OBJECTS: Final = 500
"""Fewer new objects since the last collection mean that the process is idle."""
_LONG_IDLE: Final = 12
"""Idle collections in a row after which little freed memory is kept: nobody waits for more to be mapped."""
_FULL_PAUSE: Final = 100
"""A full collection is followed by a pause so many times as long."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
_FREED_BYTES: Final = 512 << 20
_LARGEST_KEPT: Final = 32 << 20
"""The maximum of M_MMAP_THRESHOLD in glibc."""


def freeze_heap() -> None:
    """Freeze the heap (`gc.freeze`) and raise the thresholds of the garbage collector."""
    # Ray, its libraries and a framework leave some hundred thousand objects that never die; a full collection
    # that examines them all stops every request for tens of milliseconds.
    gc.collect()
    gc.freeze()
    # Requests leave no cycles: examining every 700 new objects, Python's default, costs 3% of their time.
    gc.set_threshold(_YOUNG_OBJECTS)
    _keep_freed_memory()


def share_interpreter() -> None:
    """Have threads give the interpreter to each other after half a millisecond, not Python's five."""
    # Beside a client of long JSON, which other threads read and write, small requests had half to three
    # quarters of the rate.
    sys.setswitchinterval(0.0005)


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of freed large arrays for the next ones."""
    # By default glibc returns memory at the end of a heap from twice the largest array on: eight tensors of
    # 600 KB a batch cost a replica 0.7 ms of page faults a request, more than all its other work.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33: ten numbers, the ninth being the bytes in free chunks."""

    _fields_ = (("others", ctypes.c_size_t * 8), ("free", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))


def trim_malloc(above: int = _FREED_BYTES) -> None:
    """Return freed memory to the kernel when glibc holds more than `above` bytes of it."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallinfo2.restype = _Mallinfo
    if libc.mallinfo2().free > above:
        libc.malloc_trim(ctypes.c_size_t(_KEPT_BYTES))


class LoopThread:
    """A daemon thread with a running event loop."""

    def __init__(self, name: str, borrowable: bool = False) -> None:
        """`borrowable` is whether other threads may run the loop; it is slower at I/O."""
        self._borrowable = BorrowableLoop() if borrowable else None
        self.loop: asyncio.AbstractEventLoop = self._borrowable or uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; never call this on the loop itself.

        Raises:
            TimeoutError: not done after `timeout` seconds; the coroutine continues.
        """
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await its result on another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def run_soon(self, work: Callable[[], object], here: bool = False) -> None:
        """Call a function as a callback of the loop, if `here` on the calling thread where that can be."""
        if not (here and self._borrowable is not None and self._borrowable.borrow(work)):
            self.loop.call_soon_threadsafe(work)

    def schedule_gc(self, every_s: float = _COLLECT_EVERY_S) -> None:
        """Collect garbage every few seconds, not only after so many new objects."""
        # The collector counts objects, not the memory they hold: a cycle that a Python model leaves behind
        # with an exception, or a client with a broken connection, may be a few objects that keep megabytes
        # lent by another process.
        self.loop.call_soon_threadsafe(self._collect, every_s, 0.0, 0)

    def _collect(self, every_s: float, full_from: float, idle: int) -> None:
        """Collect young objects, and while the process is idle old ones too, and return freed memory.

        Args:
            every_s: seconds between collections.
            full_from: monotonic time before which no full collection begins.
            idle: number of collections before this one at which the process was idle.
        """
        began = time.monotonic()
        idle = idle + 1 if gc.get_count()[0] < _IDLE_OBJECTS else 0
        full = idle > 0 and began >= full_from
        gc.collect(2 if full else 1)
        if full:
            full_from = began + _FULL_PAUSE * (time.monotonic() - began)
        if full or idle == _LONG_IDLE:
            # Once: glibc counts what it has returned as free, and would return it again and again.
            self.loop.run_in_executor(None, trim_malloc, _KEPT_BYTES if idle == _LONG_IDLE else _FREED_BYTES)
        self.loop.call_later(every_s, self._collect, every_s, full_from, idle)

    def stop(self) -> None:
        """Stop the loop and its thread; idempotent."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self.loop.close()  # the collector cannot free an open one

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
