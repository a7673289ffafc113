"""Tells the manager what the replicas of this node use, where models are loaded on demand."""

import asyncio
import logging
from typing import Final, Protocol

from app.core.errors import InferError
from app.core.residency import USE, ReplicaUse, ResidencyReport, UseReport
from app.ingress.service.replica_statistics import ask
from app.routing.router import Router

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
        asked = (ask(self._router.pool(entry).local_channels(), USE, ReplicaUse) for _, entry in applications)
        answers = await asyncio.gather(*asked)
        return [(name, use) for (name, _), uses in zip(applications, answers, strict=True) for use in uses]
