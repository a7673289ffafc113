"""Tells the manager what the replicas of this node use, where models are loaded on demand."""

import asyncio
from collections.abc import Awaitable, Callable

from app.core.observability.reporter import Reporter
from app.core.residency import USE, ReplicaUse, ResidencyReport, UseReport
from app.dispatch.router import Router
from app.ingress.service.replica_statistics import ANSWER_S
from app.transport.channel.survey import ask


class UseReports(Reporter[UseReport, ResidencyReport]):
    """Asks the replicas once a second; a request costs nothing for it.

    Attributes:
        figures: the manager's last answer.
    """

    repeats = False

    def __init__(self, router: Router, send: Callable[[UseReport], Awaitable[ResidencyReport]]) -> None:
        super().__init__("the use of models", send)
        self._router = router
        self.figures = ResidencyReport()

    async def collect(self, number: int) -> UseReport:
        """Return the use of each replica of this node."""
        applications = list(self._router.table.applications.items())
        pools = (self._router.pool(entry) for _, entry in applications)
        asked = (ask(pool.local_channels(), USE, ReplicaUse, ANSWER_S) for pool in pools)
        answers = await asyncio.gather(*asked)
        found = zip(applications, answers, strict=True)
        return [(name, use) for (name, _), uses in found for _, use in uses]

    def heard(self, report: UseReport, answer: ResidencyReport) -> None:
        """Keep the figures."""
        self.figures = answer
