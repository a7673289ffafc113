"""Reports of outcomes: numbered, sent again until they arrive, never two at once."""

from typing import Any, cast

import pytest

from app.core.errors import InferError, unavailable
from app.core.rollout.outcomes import OutcomeReport, Outcomes, StepOutcomes, VersionOutcomes
from app.rollout.reporter import OutcomeReporter


class Traffic:
    def __init__(self) -> None:
        self.counted = self.delivered = 0

    def take(self) -> list[StepOutcomes]:
        taken, self.counted = self.counted, 0
        return [StepOutcomes("r", 0, Outcomes(stable=VersionOutcomes(ok=taken)))] if taken else []

    def arrived(self, steps: list[StepOutcomes]) -> None:
        self.delivered += len(steps)


class Manager:
    def __init__(self) -> None:
        self.away = False
        self.received: list[tuple[int, int]] = []

    async def receive(self, report: OutcomeReport) -> None:
        assert report.ingress == "ingress"
        if self.away:
            raise unavailable("the repository manager does not answer")
        self.received.append((report.number, report.steps[0].outcomes.stable.ok))


async def test_reports_are_numbered_and_sent_again_until_they_arrive() -> None:
    traffic, manager = Traffic(), Manager()
    reporter = OutcomeReporter(cast(Any, traffic), manager.receive, "ingress")
    await reporter.report()
    assert manager.received == [], "nothing was counted"
    traffic.counted = 1
    await reporter.report()
    manager.away = True
    for _ in range(3):
        traffic.counted += 10
        with pytest.raises(InferError):
            await reporter.report()
    manager.away = False
    await reporter.report()
    await reporter.report()
    await reporter.report()
    assert manager.received == [(1, 1), (2, 10), (3, 20)] and traffic.delivered == 3
