"""What fakes of the service behind both fronts have in common."""

from collections.abc import Callable, Sequence

from app.core.cost.report import Report
from app.core.drift.status import DriftStatus
from app.core.errors import unsupported
from app.core.feedback.figures import FeedbackFigures, Scores
from app.core.feedback.records import Feedback
from app.tape.browsing import TapeBrowser
from tests.unit.app.drift_fakes import drift_status


class Insight:
    """A service without a tape and an account, with one drift and feedback on the model `simple`."""

    given: tuple[str, str, tuple[Feedback, ...]]
    """The last feedback: model, version, records."""

    async def cost(
        self, since: float, by: Sequence[str], permits: Callable[[str], bool] | None = None
    ) -> Report:
        raise unsupported("this server counts no costs")

    def tape(self) -> TapeBrowser:
        raise unsupported("this server records no requests")

    async def feedback(self, name: str, version: str, records: Sequence[Feedback]) -> None:
        if name != "simple":
            raise unsupported("no tape")
        self.given = name, version, tuple(records)

    async def feedback_figures(self, name: str) -> FeedbackFigures:
        return FeedbackFigures(
            {"1": Scores(100, 100.0, 90.0, 90.0, 100.0), "2": Scores(2, 2.0, 0.9, 0.5, 2.0)}, again=3
        )

    async def drift(self, name: str, version: str = "") -> DriftStatus:
        return drift_status(name, version)
