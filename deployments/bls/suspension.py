"""Executions that wait for answers of other models, on a thread by blocking it, on a loop by leaving it.

A call from an instance's thread to the loop and back wakes each of them once, and both then wait for the
interpreter's lock. An execution that takes place on the loop saves all that: while it waits, its stack is put
aside (a greenlet), and who gives the answer, on the loop, continues it.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, ParamSpec, TypeVar, cast

from greenlet import getcurrent, greenlet

P = ParamSpec("P")
T = TypeVar("T")


class _Waited(threading.local):
    ns = 0


waited: Final = _Waited()
"""Nanoseconds that executions on this thread have waited for answers."""


class _Pausable(greenlet):  # type: ignore[misc]
    """An execution on a loop."""


def run_suspendable(execute: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Execute on the loop that calls; returns when the execution waits for its first answer, or is over."""
    _Pausable(execute).switch(*args, **kwargs)


def is_pausable() -> bool:
    """Whether what calls is part of an execution on a loop."""
    return type(getcurrent()) is _Pausable


class ResponseFuture(Generic[T]):
    """What an execution waits for. Made by the execution, and given once."""

    __slots__ = ("_execution", "_given", "_paused", "_waiting")

    def __init__(self) -> None:
        current = getcurrent()
        self._execution = current if type(current) is _Pausable else None
        self._given: list[T] = []
        self._paused = False
        self._waiting: threading.Lock | None = None
        if self._execution is None:
            self._waiting = threading.Lock()
            self._waiting.acquire()

    def give(self, response: T) -> None:
        """Continue the execution; on any thread, but on the loop for an execution that is there."""
        self._given.append(response)
        if self._waiting is not None:
            self._waiting.release()
        elif self._paused:
            self._paused = False
            cast(greenlet, self._execution).switch()

    def wait(self) -> T:
        """Wait for the response, which may be there already."""
        began = time.monotonic_ns()
        if self._waiting is not None:
            self._waiting.acquire()
        elif not self._given:
            self._paused = True
            cast(greenlet, self._execution).parent.switch()
        waited.ns += time.monotonic_ns() - began
        return self._given[0]
