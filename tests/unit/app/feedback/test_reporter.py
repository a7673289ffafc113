"""Scores that an ingress reports to the manager."""

from collections.abc import Sequence

import pytest

from app.core.errors import InferError, unavailable
from app.core.feedback.figures import Scores
from app.core.feedback.reports import ScoreReport, SlotScores
from app.feedback.reporter import ScoreReporter


class FakeKeeper:
    """Has slots that have changed."""

    def __init__(self) -> None:
        self.changed: list[SlotScores] = []

    async def slots(self, after: int, models: Sequence[str], since: int) -> list[SlotScores]:
        return [each for each in self.changed if each.change > after and each.model in models]


class FakeManager:
    """Takes reports, unless it is away."""

    def __init__(self) -> None:
        self.name = "first"
        self.got: list[tuple[str, int]] = []
        self.away = False

    async def take(self, report: ScoreReport) -> str:
        if self.away:
            raise unavailable("away")
        self.got += [(each.model, each.change) for each in report.slots]
        return self.name


def slot(change: int, model: str = "m") -> SlotScores:
    return SlotScores(model, "1", change, Scores().with_score(1.0), change)


async def test_changes_are_reported_once_and_anew_to_a_new_manager() -> None:
    keeper, manager, models = FakeKeeper(), FakeManager(), {"m": "rollout"}
    reporter = ScoreReporter(keeper, lambda: models, manager.take, "node")
    keeper.changed = [slot(1), slot(2), slot(3, "without a rollout")]
    await reporter.report()
    await reporter.report()
    assert manager.got == [("m", 1), ("m", 2)]
    keeper.changed.append(slot(4))
    manager.away = True
    with pytest.raises(InferError):
        await reporter.report()
    manager.away, manager.name, manager.got = False, "second", []
    await reporter.report()
    await reporter.report()
    assert manager.got == [("m", 4), ("m", 1), ("m", 2), ("m", 4)]
    models["m"] = "another rollout"
    manager.got = []
    await reporter.report()
    assert manager.got == [("m", 1), ("m", 2), ("m", 4)]
