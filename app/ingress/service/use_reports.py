"""Tells the manager what the replicas of this node use, where models are loaded on demand."""

import asyncio
import logging
from typing import Final, Protocol

from app.core.errors import InferError
from app.core.residency import USE, ReplicaUse, ResidencyReport, UseReport
from app.dispatch.router import Router
from app.ingress.service.replica_statistics import ANSWER_S
from app.transport.channel.survey import ask

logger = logging.getLogger(__name__)

PERIOD_S: Final = 1.0

pause = asyncio.sleep


class Manager(Protocol):
    """The repository manager, as it is told."""

    async def report_use(self, uses: UseReport) -> ResidencyReport: ...


class UseReports:
    """Asks the replicas once a second; a request costs nothing for it.

    Attributes:
        figures: the manager's last answer.
    """

    def __init__(self, router: Router, manager: Manager) -> None:
        self._router = router
        self._manager = manager
        self.figures = ResidencyReport()

    async def run(self) -> None:
        """Report for ever."""
        while True:
            try:
                self.figures = await self._manager.report_use(await self._uses())
            except InferError as error:
                logger.debug("reporting the use of models: %s", error)
            await pause(PERIOD_S)

    async def _uses(self) -> UseReport:
        applications = list(self._router.table.applications.items())
        pools = (self._router.pool(entry) for _, entry in applications)
        asked = (ask(pool.local_channels(), USE, ReplicaUse, ANSWER_S) for pool in pools)
        answers = await asyncio.gather(*asked)
        found = zip(applications, answers, strict=True)
        return [(name, use) for (name, _), uses in found for _, use in uses]
