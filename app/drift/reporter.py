"""Reports what was counted of models to the repository manager, and hears what is to be counted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from app.core.drift.counts import PERIOD_S, DriftAnswer, DriftReport
from app.core.errors import InferError
from app.drift.admission import Admitted
from app.drift.tap import DriftTap

logger = logging.getLogger(__name__)

pause: Final = asyncio.sleep

_LEAST_S: Final = 0.2
"""From one report to one that is hurried: tables may come many a second."""

Send = Callable[[DriftReport], Awaitable[DriftAnswer]]


class DriftReporter:
    """Reports every ten seconds, and when it is hurried.

    A report that did not arrive is sent again with its number, by which the manager adds none twice. What is
    counted meanwhile goes into the next one, so that nothing piles up while the manager is away.

    Attributes:
        answer: the manager's last one.
    """

    def __init__(
        self,
        tap: DriftTap,
        send: Send,
        name: str,
        changed: Callable[[], None],
        period_s: float = PERIOD_S,
    ) -> None:
        """Report as `name`, which is of this process and of no other; call `changed` after new references."""
        self._tap = tap
        self._period_s = period_s
        self._hurried = asyncio.Event()
        self._send = send
        self._changed = changed
        self._last = DriftReport(name, 0)
        self._arrived = True
        self.answer = DriftAnswer()

    @property
    def admitted(self) -> Mapping[Admitted, int]:
        """Requests that rules for inputs have found here: by model, input, what was found, and action."""
        return self._tap.tally.counts

    async def run(self) -> None:
        """Report for ever."""
        while True:
            try:
                await self.report()
            except InferError as error:
                logger.debug("a report of drift is sent again: %s", error.message)
            except Exception:
                logger.exception("reporting drift")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._period_s):
                    await self._hurried.wait()
                    await pause(_LEAST_S)
            self._hurried.clear()

    def hurry(self) -> None:
        """Report soon: there may be new references."""
        self._hurried.set()

    async def report(self) -> None:
        """Send what was counted, or the last report if it has not arrived; count by the answer from now on.

        Raises:
            InferError: the manager has not received it.
        """
        self._tap.tally.tell()
        if self._arrived:
            versions = []
            for counts in self._tap.take():
                versions.append(counts)
                await asyncio.sleep(0)  # requests are served between two versions
            number = self._last.number + 1
            self._last = DriftReport(self._last.ingress, number, versions, self._tap.known)
            self._arrived = False
        self.answer = await self._send(self._last)
        self._arrived = True
        if self._tap.follow(self.answer.references):
            self._changed()
