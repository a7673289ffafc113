"""Blocking calls that may hang: one after the other, in a thread of which at most one is left behind."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoneThread:
    """Runs blocking calls of one kind. While one of them hangs, further ones fail at once. Of one event loop.

    The thread ends with the process: one that hangs in a call of the system keeps no process alive.

    Args:
        name: of the thread.

    Attributes:
        skipped: calls that failed because one before them hung.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = asyncio.Lock()
        self._running: Future[Any] | None = None
        self._late = False
        self.skipped = 0

    @property
    def hangs(self) -> bool:
        """Whether a call has taken more than its time and has not ended."""
        return self._late and self._running is not None and not self._running.done()

    async def run(self, call: Callable[[], _T], limit_s: float) -> _T:
        """Return what a call returns, or raise what it raises, after calls before it have ended.

        Raises:
            TimeoutError: it has not ended within `limit_s` seconds, and goes on; or one before it hangs, and
                it was not begun.
        """
        async with self._turn:
            if self.hangs:
                self.skipped += 1
                raise TimeoutError(f"an earlier call has not ended ({self._name})")
            try:
                async with asyncio.timeout(limit_s):
                    if self._running is not None:  # of somebody who has left
                        await asyncio.gather(asyncio.wrap_future(self._running), return_exceptions=True)
                    self._running = running = self._begin(call)
                    return await asyncio.wrap_future(running)
            except TimeoutError as error:
                self._late = self._running is not None and not self._running.done()
                raise TimeoutError(str(error) or f"no answer in {limit_s:g} s ({self._name})") from None

    def _begin(self, call: Callable[[], _T]) -> Future[_T]:
        done: Future[_T] = Future()
        done.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        threading.Thread(target=_execute, args=(call, done), name=self._name, daemon=True).start()
        return done


def _execute(call: Callable[[], _T], done: Future[_T]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:
        done.set_exception(error)
