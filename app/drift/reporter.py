"""Reports what was counted of models to the repository manager, and hears what is to be counted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from app.core.drift.counts import PERIOD_S, DriftAnswer, DriftReport
from app.core.observability.reporter import Reporter
from app.drift.admission import Admitted
from app.drift.tap import DriftTap

Send = Callable[[DriftReport], Awaitable[DriftAnswer]]


class DriftReporter(Reporter[DriftReport, DriftAnswer]):
    """Reports every ten seconds, and when it is hurried: there may be new references.

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
        super().__init__("drift", send, period_s)
        self._tap, self._name, self._changed = tap, name, changed
        self.answer = DriftAnswer()

    @property
    def admitted(self) -> Mapping[Admitted, int]:
        """Requests that rules for inputs have found here: by model, input, what was found, and action."""
        return self._tap.tally.counts

    async def report(self) -> None:
        """As `Reporter.report`; also say what rules have found here."""
        self._tap.tally.tell()
        await super().report()

    async def collect(self, number: int) -> DriftReport:
        """Return what was counted since the last report."""
        versions = []
        for counts in self._tap.take():
            versions.append(counts)
            await asyncio.sleep(0)  # requests are served between two versions
        return DriftReport(self._name, number, versions, self._tap.known)

    def heard(self, report: DriftReport, answer: DriftAnswer) -> None:
        """Count by the answer from now on."""
        self.answer = answer
        if self._tap.follow(answer.references):
            self._changed()
