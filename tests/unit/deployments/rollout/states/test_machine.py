"""The states of a rollout as functions of a record and the time."""

from typing import Any

import msgspec
import pytest

from app.core.errors import InferError
from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutChange, RolloutState, Verdict
from deployments.rollout.judging.intervals import UNSEEN, Bet, Intervals
from deployments.rollout.states import machine
from deployments.rollout.states.changes import changed
from deployments.rollout.states.policy import merged
from deployments.rollout.states.record import Record

STEP, SHADOW, PAUSED = RolloutState.STEP, RolloutState.SHADOW, RolloutState.PAUSED
QUICK = {"steps": [10, 50], "step": {"min_seconds": 60, "min_requests": 100, "max_seconds": 600}}


def rollout(first: float | None = None, **policy: Any) -> Record:
    """A rollout whose candidate has loaded at second 0."""
    spec = merged(RolloutSpec(), {**QUICK, **policy})
    begun = machine.begun("m", (1, 2), spec, now=0, identity=machine.Identity("r", "f", "s"), first=first)
    return machine.loaded(begun, 0)


def candidate(ok: int, failed: int = 0) -> Outcomes:
    return Outcomes(candidate=VersionOutcomes(ok=ok, failed=failed))


def counted(record: Record, outcomes: Outcomes, now: float) -> Record:
    return machine.counted(record, record.status.step, outcomes, now)


def at(record: Record) -> tuple[RolloutState, float]:
    return record.status.state, record.status.percent


def alarmed(record: Record, now: float) -> Record:
    return machine.ticked(machine.with_status(record, verdict=Verdict(("slow", "wrong"))), now)


LOADED: list[tuple[dict[str, Any], tuple[RolloutState, float]]] = [
    ({}, (STEP, 10)),
    ({"mirror": 5}, (SHADOW, 0)),
    ({"steps": [0, 10]}, (SHADOW, 0)),
    ({"steps": []}, (RolloutState.PROMOTED, 100)),
    ({"steps": [100]}, (RolloutState.PROMOTED, 100)),
    ({"first": 0}, (SHADOW, 0)),
    ({"first": 30}, (STEP, 30)),
    ({"first": 100}, (RolloutState.PROMOTED, 100)),
]


@pytest.mark.parametrize(("policy", "expected"), LOADED, ids=[str(policy) for policy, _ in LOADED])
def test_where_a_rollout_begins(policy: dict[str, Any], expected: tuple[RolloutState, float]) -> None:
    assert at(rollout(**policy)) == expected


def test_the_first_requests_after_a_change_of_the_weight_are_not_judged() -> None:
    record = counted(rollout(), candidate(12), 1)
    record = counted(record, candidate(12), 2)
    assert record.status.outcomes.candidate.ok == 0 and record.status.total.candidate.ok == 24
    record = counted(record, candidate(3), 3)
    assert record.status.outcomes.candidate.ok == 3, "the first 20 have been"
    slow = counted(rollout(), candidate(2), machine.WARM_SECONDS)
    assert slow.status.outcomes.candidate.ok == 2, "the first seconds have passed"
    again = machine.weighted(record, 50, 3, "ann", "")
    assert counted(again, candidate(3), 4).status.outcomes.candidate.ok == 0


def test_what_is_told_late_of_an_earlier_step_is_only_in_the_total() -> None:
    record = machine.weighted(rollout(), 50, 100, "ann", "")
    late = machine.counted(record, record.status.step - 1, candidate(7, 7), 200)
    assert late.status.outcomes == Outcomes() and late.status.total.candidate.failed == 7


def test_a_step_passes_after_both_its_minima() -> None:
    record = counted(rollout(), candidate(99), 30)
    assert machine.ticked(record, 60) is record, "a request is missing"
    record = counted(record, candidate(1), 40)
    assert machine.ticked(record, 59) is record, "a second is missing"
    passed = machine.ticked(record, 60)
    assert at(passed) == (STEP, 50) and passed.status.outcomes == Outcomes()
    assert passed.status.step == record.status.step + 1


def test_a_step_that_hears_nothing_pauses_and_goes_on_where_it_was() -> None:
    record = counted(rollout(), candidate(3), 30)
    paused = machine.ticked(record, 600)
    assert paused.status.state is PAUSED and paused.status.resumes is STEP
    assert paused.status.reason == "inconclusive: 3 of 100 requests in 600 s"
    assert machine.ticked(paused, 6000) is paused
    resumed = machine.resumed(paused, 7000, "ann")
    assert at(resumed) == (STEP, 10) and resumed.status.since == 7000 and resumed.status.resumes is None


def test_mirrored_requests_count_in_shadow_alone() -> None:
    mirrored = Outcomes(mirror=MirrorOutcomes(compared=90, failed=10))
    shadow = counted(rollout(mirror=20), mirrored, 30)
    assert at(machine.ticked(shadow, 60)) == (STEP, 10)
    step = counted(rollout(), mirrored, 30)
    assert machine.ticked(step, 60) is step


def test_an_alarm_rolls_back_from_each_state_in_which_the_candidate_serves() -> None:
    step = rollout()
    promoted = machine.weighted(step, 100, 5, "ann", "")
    for record in (rollout(mirror=5), step, promoted, machine.paused(step, "lunch", 5)):
        back = alarmed(record, 10)
        assert at(back) == (RolloutState.ROLLING_BACK, 0) and back.status.reason == "slow; wrong"
        assert machine.rolled_back(back, 11).status.state is RolloutState.FAILED
    over = machine.rolled_back(alarmed(step, 10), 11)
    assert alarmed(over, 12).status.state is RolloutState.FAILED


def test_an_alarm_pauses_once_where_the_policy_says_so() -> None:
    paused = alarmed(rollout(rollback="pause"), 10)
    assert at(paused) == (PAUSED, 10)
    assert alarmed(paused, 11).status.history == paused.status.history
    lost = machine.unavailable("killed", rollout(rollback="pause"), 10)
    assert at(lost) == (PAUSED, 0), "no ingress reaches it"


def test_the_promoted_version_is_done_after_its_time() -> None:
    promoted = machine.weighted(rollout(keep_stable_seconds=5), 100, 10, "ann", "")
    assert machine.ticked(promoted, 14) is promoted
    assert at(machine.ticked(promoted, 15)) == (RolloutState.DONE, 100)


@pytest.mark.parametrize(
    ("policy", "weight"), [({}, 990_000), ({"holdback": 0}, 1_000_000), ({"steps": [99.5]}, 995_000)]
)
def test_a_share_stays_with_the_stable_version_while_it_is_kept(policy: dict[str, Any], weight: int) -> None:
    promoted = machine.weighted(rollout(**policy), 100, 5, "ann", "")
    for record in (promoted, machine.paused(promoted, "lunch", 6)):
        assert machine.weight(record) == weight and record.status.percent == 100
    assert machine.weight(rollout(**policy)) < 995_001


def test_durations_are_judged_only_while_both_versions_answer() -> None:
    record = rollout(holdback=0)
    assert machine.rules(record) == record.status.spec.judge
    promoted = machine.weighted(record, 100, 5, "ann", "")
    rules = machine.rules(promoted)
    assert rules.latency is None and rules.compute is None and rules.errors is not None
    kept = machine.weighted(rollout(), 100, 5, "ann", "")
    assert machine.rules(kept) == kept.status.spec.judge


def test_evidence_of_durations_goes_on_in_the_next_step_but_not_after_a_person() -> None:
    answers = VersionOutcomes(ok=100, latencies={60: 100})
    record = counted(rollout(), Outcomes(answers, answers), 30)
    assert list(record.intervals.pending) == [""]
    record = msgspec.structs.replace(
        record, intervals=Intervals(record.intervals.pending, latency=Bet(log_evidence=2))
    )
    next_step = machine.ticked(record, 60)
    assert at(next_step) == (STEP, 50) and next_step.intervals == Intervals(latency=Bet(log_evidence=2))
    assert machine.resumed(machine.paused(record, "lunch", 50), 60, "ann").intervals == UNSEEN


def test_the_weight_of_a_paused_rollout_may_be_set() -> None:
    paused = machine.paused(rollout(), "lunch", 5)
    moved = changed(paused, RolloutChange("set", weight=30), "ann", 6)
    assert at(moved) == (PAUSED, 30) and moved.status.reason == "lunch"
    assert at(machine.resumed(moved, 7, "ann")) == (STEP, 30)
    assert machine.next_percent(moved) == 50


@pytest.mark.parametrize(("action", "weight"), [("set", 30.0), ("promote", None)])
def test_the_weight_of_a_candidate_that_loads_is_that_of_its_first_step(
    action: Any, weight: float | None
) -> None:
    loading = machine.begun("m", (1, 2), RolloutSpec(), now=0, identity=machine.Identity("r", "f", "s"))
    planned = changed(loading, RolloutChange(action, weight=weight), "ann", 5)
    assert at(planned) == (RolloutState.LOADING, 0) and planned.status.since == 0
    assert machine.loaded(planned, 9).status.percent == (weight or 100)
    with pytest.raises(InferError, match=r"cannot pause .*: its version is still loading; wait for it, or"):
        changed(loading, RolloutChange("pause"), "ann", 5)


def test_the_policy_may_be_set_while_it_runs() -> None:
    spec = {"step": {"min_requests": 5}}
    record = counted(rollout(), candidate(7), 30)
    moved = changed(record, RolloutChange("set", spec=spec), "ann", 40)
    assert moved.status.spec.step.min_requests == 5 and moved.status.spec.step.min_seconds == 60
    assert at(moved) == (STEP, 10) and moved.status.outcomes.candidate.ok == 7
    assert moved.status.history[-1].who == "ann" and at(machine.ticked(moved, 60)) == (STEP, 50)


def test_reasons_and_history_are_bounded() -> None:
    record = rollout()
    for second in range(100):
        record = machine.paused(record, f"{second}" + "x" * 1000, second)
    assert len(record.status.history) == machine.MAX_HISTORY
    assert len(record.status.reason) == machine.MAX_WHY and record.status.reason.startswith("99x")
