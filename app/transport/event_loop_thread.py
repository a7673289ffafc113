"""The thread that runs the data plane.

Serve runs user code on a loop of plain asyncio that it also uses for health checks; the data plane has a
uvloop of its own, so neither waits for the other.
"""

import asyncio
import ctypes
import gc
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")

_YOUNG_OBJECTS: Final = 20_000
"""New objects after which the garbage collector looks at them."""
_SWEEP_S: Final = 5.0
_IDLE_OBJECTS: Final = 500
"""Fewer new ones between two sweeps are nobody's work."""
_FULL_EVERY: Final = 100
"""How many times as long as a full collection takes there is none."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
_FREED_BYTES: Final = 512 << 20
_LARGEST_KEPT: Final = 32 << 20
"""The most that glibc takes for M_MMAP_THRESHOLD."""


def freeze_heap() -> None:
    """Take what lives now out of the garbage collector's sight.

    Ray, its libraries and a framework leave some hundred thousand objects that never die; a full collection
    that looks at them all stops every request for tens of milliseconds. What a request leaves goes by its
    reference counts; looking for cycles after every 700 objects, Python's default, costs 3% of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let the C library keep what large arrays have left for the next ones.

    By default glibc gives freed memory at the end of a heap back from twice the largest array on: eight
    tensors of 600 KB a batch cost a replica 0.7 ms of page faults a request, more than all its other work.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33: ten numbers, the ninth being the bytes in free chunks."""

    _fields_ = (("others", ctypes.c_size_t * 8), ("free", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))


def give_back_freed(above: int = _FREED_BYTES) -> None:
    """Let the system have freed memory again that fragments at the end of a heap kept from it.

    Args:
        above: free bytes that glibc may keep; that many had to be in use once.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return
    libc.mallinfo2.restype = _Mallinfo
    if libc.mallinfo2().free > above:
        libc.malloc_trim(ctypes.c_size_t(_KEPT_BYTES))


class LoopThread:
    """A daemon thread with a running event loop."""

    def __init__(self, name: str) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    @property
    def here(self) -> bool:
        """Whether this is called on the loop's thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; not to be called from the loop itself.

        Raises:
            TimeoutError: not done after `timeout` seconds (the coroutine goes on).
        """
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and await its result on another loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    def keep_swept(self, every_s: float = _SWEEP_S) -> None:
        """Have the collector look every few seconds, not only after so many objects.

        It counts objects, and not what they hold: a circle that a Python model leaves behind with an
        exception, or a client with a broken connection, may be few of them and keep megabytes that another
        process has lent. Old ones go by a full collection, while there is no work.
        """
        self.loop.call_soon_threadsafe(self._sweep, every_s, 0.0)

    def _sweep(self, every_s: float, full_from: float) -> None:
        began = time.monotonic()
        full = began >= full_from and gc.get_count()[0] < _IDLE_OBJECTS
        gc.collect(2 if full else 1)
        if full:
            full_from = began + _FULL_EVERY * (time.monotonic() - began)
            self.loop.run_in_executor(None, give_back_freed)
        self.loop.call_later(every_s, self._sweep, every_s, full_from)

    def stop(self) -> None:
        """End the loop and its thread; a second time does nothing."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        if not self._thread.is_alive():
            self.loop.close()  # the collector cannot free an open one

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
