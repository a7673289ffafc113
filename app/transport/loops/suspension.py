"""Waiting for responses of other models: a thread blocks, an execution on the event loop is suspended.

A call from an instance's thread to the loop and back wakes each of them once, and both then compete for the
interpreter lock. An execution on the loop saves that: while it waits, its stack is set aside (a greenlet),
and the callback that receives the response, on the same loop, resumes it.
"""

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast

from greenlet import getcurrent, greenlet

from app.transport.loops.watchdog import LoopWatchdog

P = ParamSpec("P")
T = TypeVar("T")


class _WaitTime(threading.local):
    """Nanoseconds that executions on this thread have waited for responses."""

    ns = 0

    def collect(self) -> int:
        """Return the nanoseconds since the last collection on this thread."""
        ns, self.ns = self.ns, 0
        return ns


wait_time: Final = _WaitTime()


class _Execution(greenlet):  # type: ignore[misc]
    """An execution on an event loop, of a model that `watchdog` watches."""

    def __init__(self, execute: Callable[..., None], watchdog: LoopWatchdog) -> None:
        super().__init__(execute)
        self.watchdog = watchdog

    def suspend(self) -> None:
        """Return to the loop until `switch` is called."""
        self.watchdog.leave()
        self.parent.switch()
        self.watchdog.enter()


def run_suspendable(
    watchdog: LoopWatchdog, execute: Callable[P, None], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Execute on the calling loop; return when the execution is first suspended, or has ended."""
    _Execution(execute, watchdog).switch(*args, **kwargs)


def current_watchdog() -> LoopWatchdog | None:
    """Return the watchdog of the execution on an event loop that the caller is part of, if it is."""
    current = getcurrent()
    return current.watchdog if isinstance(current, _Execution) else None


class ResponseFuture(Generic[T]):
    """The response that an execution waits for. The execution makes it; it is set once."""

    __slots__ = ("_blocked", "_execution", "_responses", "_suspended")

    def __init__(self) -> None:
        current = getcurrent()
        self._execution = current if isinstance(current, _Execution) else None
        self._responses: list[T] = []
        self._suspended = False
        self._blocked: threading.Lock | None = None
        if self._execution is None:
            self._blocked = threading.Lock()
            self._blocked.acquire()

    def set(self, response: T) -> None:
        """Resume the execution; on any thread, but for an execution on a loop only on that loop."""
        self._responses.append(response)
        if self._blocked is not None:
            self._blocked.release()
        elif self._suspended:
            self._suspended = False
            cast(_Execution, self._execution).switch()

    def wait(self) -> T:
        """Return the response, waiting for it unless it is set already."""
        began = time.monotonic_ns()
        if self._blocked is not None:
            self._blocked.acquire()
        elif not self._responses:
            self._suspended = True
            cast(_Execution, self._execution).suspend()
        wait_time.ns += time.monotonic_ns() - began
        return self._responses[0]


def count_waiting(coroutine: Coroutine[Any, Any, Any], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> Any:
    """Return the result of a coroutine that `run` executes on another thread; count its idle time."""
    began = time.monotonic_ns()
    result, worked_ns = run(_with_thread_time(coroutine))
    wait_time.ns += max(time.monotonic_ns() - began - worked_ns, 0)
    return result


async def _with_thread_time(coroutine: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """Return the result and the nanoseconds of processor time that the thread spent meanwhile."""
    began = time.thread_time_ns()
    result = await coroutine
    return result, time.thread_time_ns() - began
