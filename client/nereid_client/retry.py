"""When a call is sent again: after failures, and beside one that is late."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from nereid_client.errors import DeadlineExceeded, Unavailable, Unreachable

T = TypeVar("T")
Attempt = Callable[[float], Awaitable[T]]
"""Sends a call, given the seconds that are left."""

pause: Final = asyncio.sleep

FIRST_CONTACT: Final = 5.0
"""Seconds for which a server is tried that was never reached."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_LAST: Final = 100
"""Latencies from which a late answer is told."""
_ENOUGH: Final = 20
_EXTRA: Final = 0.05
"""Share of calls that may be sent twice for being late."""


class Contact:
    """Whether a server was ever there, which has answered anything at all.

    If not, its address is more likely wrong than that it restarts.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.made = False

    def explained(self, error: Unreachable) -> Unreachable:
        """Return the error of a connection that did not come about; it says more if there was never one."""
        if self.made:
            return error
        told = f"nothing answers at {self.url}: is that the address?"
        waits = "wait_ready() waits for a server that starts"
        return Unreachable(error.code, f"{error.message} ({told} {waits})")


async def repeated(attempt: Attempt[T], timeout: float, repeat: bool, contact: Contact) -> T:
    """Return the answer of the first attempt that has one.

    An attempt that finds the server unavailable is followed by another one, after a pause that grows and is
    drawn by chance, or that the server asks for; as long as the time lasts, or for a few seconds where the
    server was never reached.

    Raises:
        ServerError: of the last attempt.
    """
    begun, longest = monotonic(), _FIRST_PAUSE
    end = begun + timeout
    while True:
        left = end - monotonic()
        if left <= 0:
            raise DeadlineExceeded("DEADLINE_EXCEEDED", "there was no answer in time")
        try:
            return await attempt(left)
        except Unreachable as error:
            unavailable: Unavailable = contact.explained(error)
            last = end if contact.made else min(end, begun + FIRST_CONTACT)
        except Unavailable as error:
            contact.made, unavailable, last = True, error, end
        wait = max(unavailable.retry_after, random.uniform(longest / 2, longest))
        if not repeat or monotonic() + wait >= last:
            raise unavailable
        await pause(wait)
        longest = min(2 * longest, _LONGEST_PAUSE)


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
