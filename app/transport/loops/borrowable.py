"""An event loop that other threads may run for a moment, while the loop's own thread waits for I/O.

A call to a loop's thread and back wakes two threads, one after the other. On two idle processors that takes
several times as long as a short request; a thread that runs the loop itself wakes nobody.

asyncio's loop and not uvloop's: its thread waits for I/O in a method, where it can give the loop away.
"""

import _signal  # the module `signal` looks for an enumeration of each handler: 10 us of a call of 25
import asyncio
import math
import os
import selectors
import threading
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from types import FrameType
from typing import Any, Final

_MOST_CALLBACKS: Final = 256
"""Callbacks that a borrowing thread runs; its own are ten, an ensemble's some for each step."""

_HELD: Final = tuple(int(number) for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGALRM))
"""Signals whose handlers often raise an exception."""


class BorrowableLoop(asyncio.SelectorEventLoop):
    """An event loop whose callbacks run on one thread at a time, but not always on the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by the thread that runs callbacks
        self._waits = False  # its thread may sleep, and has not been woken
        self._called = False  # other threads have queued callbacks
        self._wakes_at = 0.0
        self._woken_late = False  # a timer of a borrower ends earlier
        self._borrowed: deque[asyncio.Handle] | None = None
        self._waiting = _Selector(self)
        super().__init__(self._waiting)

    @property
    def is_borrowed(self) -> bool:
        """Whether another thread than the loop's own runs it; for callbacks."""
        return self._borrowed is not None

    def run_forever(self) -> None:
        with self._lock:
            super().run_forever()

    def lend(self, wait: Callable[[float | None], Any], timeout: float | None) -> Any:
        """Return what `wait` returns, and let other threads run the loop meanwhile; on its own thread."""
        self._wakes_at = math.inf if timeout is None else self.time() + timeout
        self._waits = True
        if self._called:  # between its look at the queue and here, where nobody has woken it
            timeout = 0
        self._lock.release()
        try:
            return wait(timeout)
        finally:
            self._waits = False  # before it has the lock: who borrows again and again gives way
            self._lock.acquire()
            self._called = False  # the callbacks in the queue are run next

    def borrow(self, work: Callable[[], object]) -> bool:
        """Run `work` as a callback of the loop on this thread, and then the callbacks that it has led to.

        Returns:
            Whether that was done; not while the loop is busy, or called, or this thread is a loop's.
        """
        if not self._waits or self.get_debug() or events._get_running_loop() is not None:
            return False
        with _HeldSignals():
            if not self._lock.acquire(blocking=False):
                return False
            try:
                self._run_here(work)
            finally:
                self._lock.release()
        return True

    def _run_here(self, work: Callable[[], object]) -> None:
        self._borrowed = ready = deque((asyncio.Handle(work, (), self),))
        events._set_running_loop(self)
        try:
            for _ in range(_MOST_CALLBACKS):
                if not ready:
                    break
                _run(ready.popleft())
        finally:
            events._set_running_loop(None)
            self._borrowed = None
            self._leave(ready)

    def _leave(self, ready: deque[asyncio.Handle]) -> None:
        """Leave callbacks and timers to the loop's own thread, which does not know of them."""
        for handle in ready:
            self.call_soon_threadsafe(_run, handle)
        if self._woken_late:
            self._woken_late = False
            self.call_soon_threadsafe(_do_nothing)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._borrowed is None:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._borrowed.append(handle)
        return handle

    def _write_to_self(self) -> None:
        """Wake the loop's thread, once, for callbacks that were queued by another; asyncio calls this."""
        self._called = True
        if self._waits:
            self._waits = False  # nobody borrows it, and comes first, until its thread has run them
            self._waiting.wake()

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self._woken_late = self._borrowed is not None and (self._woken_late or when < self._wakes_at)
        return super().call_at(when, callback, *args, context=context)


class _Selector(selectors.DefaultSelector):
    """Lends a loop while it waits for I/O, and can be woken."""

    def __init__(self, loop: BorrowableLoop) -> None:
        super().__init__()
        self._loop = loop
        self._read, self._write = os.pipe()
        self.register(self._read, selectors.EVENT_READ)

    def wake(self) -> None:
        os.write(self._write, b"1")

    def close(self) -> None:
        super().close()
        os.close(self._read)
        os.close(self._write)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        wait = super().select
        found = wait(timeout) if timeout == 0 else self._loop.lend(wait, timeout)
        for index, (key, _) in enumerate(found):
            if key.fd == self._read:
                os.read(self._read, 16)
                del found[index]
                break
        return found


class _HeldSignals:
    """A context that calls handlers of signals at its end.

    Python calls them on the main thread between any two instructions: an exception there, such as
    KeyboardInterrupt, would leave what the callbacks of the loop change half changed.
    """

    def __enter__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._came: list[tuple[int, FrameType | None]] = []
        self._process = os.getpid()
        if threading.get_ident() != threading.main_thread().ident:
            return
        for number in _HELD:
            handler = _signal.getsignal(number)
            if callable(handler):
                self._handlers[number] = handler
                _signal.signal(number, self._hold)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # forked by a model: it may never come to the end
            self._handlers[number](number, frame)
        else:
            self._came.append((number, frame))

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)
        for number, frame in self._came:
            self._handlers[number](number, frame)


def runs_on_own_thread(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the calling callback of a loop runs on the thread that is the loop's."""
    return not (isinstance(loop, BorrowableLoop) and loop.is_borrowed)


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


def _do_nothing() -> None:
    """Wake the loop's thread, which then looks at its timers."""
