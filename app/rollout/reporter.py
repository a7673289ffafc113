"""Reports the outcomes of the requests of rollouts to the repository manager."""

from collections.abc import Awaitable, Callable

from app.core.observability.reporter import Reporter
from app.core.rollout.outcomes import OutcomeReport
from app.rollout.traffic import RolloutTraffic


class OutcomeReporter(Reporter[OutcomeReport, None]):
    """Reports once a second while there is anything to report."""

    def __init__(
        self, traffic: RolloutTraffic, send: Callable[[OutcomeReport], Awaitable[None]], name: str
    ) -> None:
        """`name` is of this process, and of no other."""
        super().__init__("outcomes of rollouts", send)
        self._traffic = traffic
        self._name = name

    async def collect(self, number: int) -> OutcomeReport | None:
        """Return what was counted since the last report."""
        steps = self._traffic.take()
        return OutcomeReport(self._name, number, steps) if steps else None

    def heard(self, report: OutcomeReport, answer: None) -> None:
        """Forget what has arrived."""
        self._traffic.arrived(report.steps)
