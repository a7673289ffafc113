"""When a call is sent again: after failures, and beside one that is late."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from nereid_client.errors import DeadlineExceeded, Unavailable

T = TypeVar("T")
Attempt = Callable[[float], Awaitable[T]]
"""Sends a call, given the seconds that are left."""

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_LAST: Final = 100
"""Latencies from which a late answer is told."""
_ENOUGH: Final = 20
_EXTRA: Final = 0.05
"""Share of calls that may be sent twice for being late."""


async def repeated(attempt: Attempt[T], timeout: float, repeat: bool) -> T:
    """Return the answer of the first attempt that has one.

    An attempt that finds the server unavailable is followed by another one, after a pause that grows and is
    drawn by chance, or that the server asks for; as long as the time lasts.

    Raises:
        ServerError: of the last attempt.
    """
    end, pause = monotonic() + timeout, _FIRST_PAUSE
    while True:
        left = end - monotonic()
        if left <= 0:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "there was no answer in time")
        try:
            return await attempt(left)
        except Unavailable as error:
            wait = max(error.retry_after, random.uniform(pause / 2, pause))
            if not repeat or monotonic() + wait >= end:
                raise
        await asyncio.sleep(wait)
        pause = min(2 * pause, _LONGEST_PAUSE)


class Hedger:
    """Sends a call again when its answer is later than 95% of them, and takes the first answer.

    At most one in twenty calls is sent again, whatever the latencies are.
    """

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=_LAST)
        self._allowance = 1.0

    async def run(self, attempt: Attempt[T], left: float) -> T:
        """Return the first answer; if no attempt has one, raise the error of the first attempt."""
        begun = monotonic()
        answer = await self._first(attempt, left)
        self._latencies.append(monotonic() - begun)
        return answer

    async def _first(self, attempt: Attempt[T], left: float) -> T:
        self._allowance = min(self._allowance + _EXTRA, _LAST * _EXTRA)
        tasks = [asyncio.ensure_future(attempt(left))]
        try:
            late = self._late()
            await asyncio.wait(tasks, timeout=late)
            if not tasks[0].done() and self._allowance >= 1 and late is not None:
                self._allowance -= 1
                tasks.append(asyncio.ensure_future(attempt(left - late)))
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        return task.result()
            return tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()

    def _late(self) -> float | None:
        """Return the latency that 95% of the last answers had; None while too few are known."""
        if len(self._latencies) < _ENOUGH:
            return None
        return statistics.quantiles(self._latencies, n=20)[-1]
