"""Reports the outcomes of the requests of rollouts to the repository manager."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from app.core.errors import InferError
from app.core.rollout.outcomes import OutcomeReport
from app.rollout.traffic import RolloutTraffic

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0


class OutcomeReporter:
    """Reports once a second while there is anything to report.

    A report that did not arrive is sent again with its number, by which the manager adds none twice. What is
    counted meanwhile goes into the next one, so that nothing piles up while the manager is away.
    """

    def __init__(
        self, traffic: RolloutTraffic, send: Callable[[OutcomeReport], Awaitable[None]], name: str
    ) -> None:
        """`name` is of this process, and of no other."""
        self._traffic = traffic
        self._send = send
        self._last = OutcomeReport(name, 0, [])
        self._arrived = True

    async def run(self) -> None:
        """Report for ever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.report()
            except InferError as error:
                logger.debug("a report of rollouts is sent again: %s", error.message)
            except Exception:
                logger.exception("reporting the outcomes of rollouts")

    async def report(self) -> None:
        """Send what was counted, or the last report if it has not arrived.

        Raises:
            InferError: the manager has not received it.
        """
        if self._arrived:
            steps = self._traffic.take()
            if not steps:
                return
            self._last = OutcomeReport(self._last.ingress, self._last.number + 1, steps)
            self._arrived = False
        await self._send(self._last)
        self._arrived = True
        self._traffic.arrived(self._last.steps)
