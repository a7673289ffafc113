"""Promoted versions are followed, minute by minute."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from app.core.cost.minutes import Minutes, MinuteUse, minute_of
from app.core.cost.reports import VersionSaving
from app.core.rollout.saving import Saving
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus
from app.core.system.tasks import Tasks
from deployments.rollout.judging.savings import FOLLOW_S, Savings, known_savings, promoted_at

NAME = "wine"
PROMOTED = 600_000.0
"""Ten thousand minutes since the epoch."""
FIRST = minute_of(PROMOTED)


def status(*events: tuple[RolloutState, float], **fields: Any) -> RolloutStatus:
    history = tuple(RolloutEvent(at, state, 100.0, "nereid", "") for state, at in events)
    state, since = events[-1]
    return RolloutStatus(
        NAME, "r1", 1, 2, state, "", 1, 100.0, since, 0.0, RolloutSpec(), history=history, **fields
    )


DONE = status(
    (RolloutState.STEP, PROMOTED - 900),
    (RolloutState.PROMOTED, PROMOTED),
    (RolloutState.DONE, PROMOTED + 300),
)


def used(minutes: Minutes, version: int, first: int, number: int, seconds: float) -> None:
    for minute in range(first, first + number):
        minutes.add(NAME, str(version), MinuteUse(minute, seconds * (1 + 0.02 * (minute % 5)), 500))


class Record:
    name = NAME

    def __init__(self, status: RolloutStatus) -> None:
        self.status = status


class Rollouts:
    """One rollout, as the driver has it."""

    def __init__(self, status: RolloutStatus, now: float) -> None:
        self.record, self.at, self.saved = Record(status), now, 0

    def in_service(self) -> Iterable[Record]:
        return [self.record]

    def saves(self, name: str, saving: Saving | None) -> None:
        self.record.status = msgspec.structs.replace(self.record.status, saving=saving)

    async def save(self, name: str) -> None:
        self.saved += 1

    def now(self) -> float:
        return self.at


def savings(minutes: Minutes, now: float = 0.0) -> tuple[Savings, Rollouts]:
    rollouts = Rollouts(DONE, now)
    return Savings(minutes, rollouts, Tasks()), rollouts


@pytest.fixture
def minutes() -> Minutes:
    made = Minutes()
    used(made, 1, FIRST - 60, 60, 4.0)
    used(made, 2, FIRST - 15, 75, 2.0)
    return made


def test_a_version_answers_everything_since_its_promotion() -> None:
    assert promoted_at(DONE) == PROMOTED
    assert promoted_at(status((RolloutState.STEP, 5.0))) is None
    paused = (RolloutState.PROMOTED, 5.0), (RolloutState.PAUSED, 6.0), (RolloutState.PROMOTED, 7.0)
    assert promoted_at(status((RolloutState.PROMOTED, 1.0), (RolloutState.STEP, 2.0), *paused)) == 5.0
    assert promoted_at(status((RolloutState.PROMOTED, 1.0), (RolloutState.FAILED, 2.0))) is None


def test_the_minutes_before_and_since_the_promotion_are_compared(minutes: Minutes) -> None:
    found = savings(minutes)[0].look(NAME, DONE, PROMOTED + 3600 + 20)
    assert found is not None and found.share is not None
    assert (found.stable_minutes, found.minutes, found.rows) == (58, 59, 59 * 500)
    assert found.share.low < 0.5 < found.share.high and found.shown


def test_rows_are_counted_once_and_baseline_minutes_stay(minutes: Minutes) -> None:
    followed, rollouts = savings(minutes)
    for minute in range(60, 90):
        used(minutes, 2, FIRST + minute, 1, 2.0)
        used(minutes, 1, FIRST + minute, 1, 0.01)  # it stays loaded
        saving = followed.look(NAME, rollouts.record.status, PROMOTED + 60 * (minute + 1) + 20)
        rollouts.saves(NAME, saving)
    found = rollouts.record.status.saving
    assert found is not None
    assert (found.stable_minutes, found.minutes, found.rows) == (58, 89, 89 * 500)


def test_once_a_minute_is_looked_and_in_ten_stored(minutes: Minutes) -> None:
    async def run() -> None:
        followed, rollouts = savings(minutes, PROMOTED + 3620)
        for _ in range(59):
            followed.tick()
        assert rollouts.record.status.saving is None
        followed.tick()
        assert rollouts.record.status.saving is not None
        for _ in range(540):
            followed.tick()
        await asyncio.sleep(0)
        assert rollouts.saved == 1

    asyncio.run(run())


def test_a_manager_that_starts_anew_keeps_what_is_known_and_counts_on(minutes: Minutes) -> None:
    known = savings(minutes)[0].look(NAME, DONE, PROMOTED + 3620)
    assert known is not None and known.core_seconds is not None
    fresh = Minutes()
    used(fresh, 2, FIRST + 100, 59, 2.0)
    later = msgspec.structs.replace(DONE, saving=known)
    found = savings(fresh)[0].look(NAME, later, PROMOTED + 159 * 60 + 20)
    assert found is not None and found.core_seconds is not None
    assert (found.rows, found.share) == (2 * known.rows, known.share)
    assert found.core_seconds.value == pytest.approx(2 * known.core_seconds.value)


def test_a_manager_that_starts_anew_too_soon_says_so(minutes: Minutes) -> None:
    early = savings(minutes)[0].look(NAME, DONE, PROMOTED + 600)
    assert early is not None and early.waiting.startswith("8 of 15 minutes since the promotion")
    fresh = Minutes()
    used(fresh, 2, FIRST + 100, 59, 2.0)
    found = savings(fresh)[0].look(NAME, msgspec.structs.replace(DONE, saving=early), PROMOTED + 12_000)
    assert found is not None and found.waiting.startswith("the minutes before the promotion are gone")


def test_where_costs_are_not_counted_nothing_is_said() -> None:
    assert savings(Minutes())[0].look(NAME, DONE, PROMOTED + 3600) is None


def test_right_after_the_promotion_it_is_said_what_is_missing() -> None:
    minutes = Minutes()
    used(minutes, 2, FIRST - 1, 1, 2.0)
    found = savings(minutes)[0].look(NAME, DONE, PROMOTED + 60)
    assert found is not None
    assert found.waiting == "0 of 15 minutes with requests before the promotion"


def test_a_version_is_not_followed_for_ever(minutes: Minutes) -> None:
    known = Saving(rows=7)
    old = msgspec.structs.replace(DONE, saving=known)
    assert savings(minutes)[0].look(NAME, old, PROMOTED + FOLLOW_S + 60) is known


def test_metrics_have_what_is_known(minutes: Minutes) -> None:
    saving = savings(minutes)[0].look(NAME, DONE, PROMOTED + 3620)
    assert saving is not None and saving.share is not None
    share = saving.share
    known, early = Record(msgspec.structs.replace(DONE, saving=saving)), Record(DONE)
    waiting = Record(msgspec.structs.replace(DONE, saving=Saving(waiting="3 of 30 minutes")))
    assert known_savings([known, early, waiting]) == (
        VersionSaving(NAME, 2, share.low, share.value, share.high),
    )
