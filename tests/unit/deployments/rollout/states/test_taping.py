"""The tape before the first percent: what a rollout does by what recorded requests show."""

from typing import Any

import msgspec
import pytest

from app.core.errors import InferError
from app.core.rollout.outcomes import MirrorOutcomes, OutcomeReport, Outcomes, StepOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.split import Split
from app.core.rollout.status import RolloutChange, RolloutState, RolloutStatus
from app.core.rollout.tape import TapeFound, TapePart, WorstRow
from deployments.manager.manager import RepositoryManager
from deployments.rollout.judging.judge import judge
from deployments.rollout.states import machine, restarts, taping
from deployments.rollout.states.changes import changed
from deployments.rollout.states.policy import merged, parse_policy
from deployments.rollout.states.record import Record
from deployments.rollout.states.splits import split_of
from deployments.rollout.storage import records
from tests.unit.deployments.rollout.rollout_bench import (
    FAILED,
    PAUSED,
    STEP,
    RolloutBench,
    act,
    ready,
    split,
    state,
    status,
)

TAPE, SHADOW = RolloutState.TAPE, RolloutState.SHADOW
STRICT = {"output": {"min_agreement": 0.995}}


def taping_at(now: float = 0.0, first: float | None = None, **policy: Any) -> Record:
    """A rollout whose candidate has loaded, by default with a tape."""
    spec = merged(RolloutSpec(), {"steps": [10], "tape": {}, **policy})
    begun = machine.begun("m", (1, 2), spec, now=now, identity=machine.Identity("r", "f", "s"), first=first)
    return taping.loaded(begun, now)


def reported(record: Record, *parts: MirrorOutcomes, tape: str = "node", rows: int = 0) -> Record:
    """The record after an ingress has looked, and repeated some parts."""
    total = rows or sum(part.compared + part.failed for part in parts)
    step = record.status.step
    found = TapeFound(tape, total, (1 << max(len(parts), 1)) - 1)
    record = taping.counted(record, StepOutcomes("r", step, Outcomes(), found=found), 1.0)
    for number, part in enumerate(parts):
        outcomes = Outcomes(mirror=part)
        step_outcomes = StepOutcomes("r", step, outcomes, part=TapePart(tape, number))
        record = taping.counted(record, step_outcomes, 1.0)
    return record


def ticked(record: Record, now: float) -> Record:
    """The record after the judge has looked."""
    verdict = judge(machine.rules(record), record.status.outcomes, record.intervals)
    return taping.ticked(machine.with_status(record, verdict=verdict), now)


def at(record: Record) -> tuple[RolloutState, float]:
    return record.status.state, record.status.percent


def test_without_a_tape_a_rollout_begins_as_before() -> None:
    assert at(taping_at(tape=None)) == (STEP, 10)
    assert at(taping_at(strategy="resource_preserving", tape=None))[0] is RolloutState.DONE


def test_nothing_of_clients_reaches_the_candidate_meanwhile() -> None:
    match = [{"header": "x", "value": "y"}]
    record = taping_at(7.0, mirror=50, match=match, tape={"requests": 700, "speed": 2, "in_flight": 3})
    made = split_of(record)
    assert (made.weight, made.mirror, made.match, made.state) == (0, 0, (), "tape")
    assert made.tape is not None and (made.tape.requests, made.tape.in_flight) == (700, 3)
    assert (made.tape.until_ns, made.tape.speed) == (5 * 10**9, 2)
    paused = split_of(machine.paused(record, "wait", 8.0))
    assert (paused.tape, paused.mirror, paused.match) == (None, 0, ())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Split) == made


def test_a_good_candidate_goes_on_once_its_rows_show_it() -> None:
    record = reported(taping_at(), MirrorOutcomes(300), MirrorOutcomes(300))
    assert ticked(record, taping.LOOK_S - 1) is not None
    assert at(ticked(record, taping.LOOK_S - 1)) == (TAPE, 0), "another ingress may still look"
    after = ticked(record, taping.LOOK_S)
    assert at(after) == (STEP, 10)
    assert after.status.reason == (
        "tape: 0 of 600 rows, at most 0.76% with a confidence of 0.99; allowed are 1 %"
    )
    assert after.status.tape is not None and after.status.tape.accepted is not None
    assert after.status.tape.accepted.accepted and after.status.outcomes == Outcomes()
    assert after.status.total.mirror.compared == 600


def test_the_weight_that_a_person_gave_comes_behind_the_tape() -> None:
    record = reported(taping_at(first=30), MirrorOutcomes(600))
    assert at(record) == (TAPE, 0) and at(ticked(record, 9.0)) == (STEP, 30)
    assert at(ticked(reported(taping_at(mirror=5), MirrorOutcomes(600)), 9.0)) == (SHADOW, 0)


def test_rows_are_waited_for_until_the_time_is_over() -> None:
    record = reported(taping_at(), MirrorOutcomes(500), rows=2000)
    record = taping.counted(
        record, StepOutcomes("r", 1, Outcomes(), found=TapeFound("node", 2000, 0b11)), 2.0
    )
    assert at(ticked(record, 299.0)) == (TAPE, 0)
    assert taping.waiting(record) == "1,500 of 2,000 recorded requests"
    after = ticked(record, 300.0)
    assert at(after) == (STEP, 10) and "500 of 2,000 rows were repeated; 0 of 500 rows" in after.status.reason


@pytest.mark.parametrize("required", [False, True])
def test_too_few_rows_are_inconclusive(required: bool) -> None:
    record = reported(taping_at(tape={"required": required}), MirrorOutcomes(100))
    after = ticked(record, 6.0)
    assert at(after) == ((PAUSED, 0) if required else (STEP, 10))
    assert after.status.reason == (
        "tape: inconclusive: 0 of 100 rows, at most 4.50% with a confidence of 0.99; allowed are 1 %, "
        "which 359 more rows without one would show"
    )


@pytest.mark.parametrize("required", [False, True])
def test_no_tape_is_inconclusive_once_an_ingress_has_said_so(required: bool) -> None:
    record = taping_at(tape={"required": required})
    assert at(ticked(record, 60.0)) == (TAPE, 0), "no ingress runs"
    record = taping.counted(record, StepOutcomes("r", 1, Outcomes(), found=TapeFound("")), 1.0)
    after = ticked(record, 6.0)
    assert at(after) == ((PAUSED, 0) if required else (STEP, 10))
    assert after.status.reason.startswith("tape: no ingress has one; inconclusive: 0 of 0 rows")


def test_what_was_left_out_is_said() -> None:
    found = TapeFound("node", 0, 0, {"it was not answered": 3, "input 'x' was not kept (size)": 40})
    record = taping.counted(taping_at(), StepOutcomes("r", 1, Outcomes(), found=found), 1.0)
    assert (
        "left out were 40 because input 'x' was not kept (size), 3 because"
        in ticked(record, 6.0).status.reason
    )


def test_a_candidate_that_is_wrong_on_one_of_twenty_is_rolled_back_by_the_rules_that_are_given() -> None:
    record = taping_at(judge=STRICT)
    for part in range(1, 32):
        record = reported(record, *[MirrorOutcomes(60, disagreeing=3)] * part, rows=1900)
        after = ticked(record, 2.0)
        if at(after) != (TAPE, 0):
            break
    assert at(after) == (RolloutState.ROLLING_BACK, 0) and part < 10
    assert "mirrored answers are not as expected" in after.status.reason


def test_without_rules_it_is_paused_and_told_what_to_write() -> None:
    record = reported(taping_at(), MirrorOutcomes(2000, differing=100))
    assert not ticked(record, 2.0).status.verdict.alarms
    after = ticked(record, 6.0)
    assert at(after) == (PAUSED, 0)
    assert "Expected were version 1's answers: judge.output says what may differ" in after.status.reason
    again = taping.resumed(after, 7.0, "ann")
    assert at(again) == (STEP, 10), "a person has seen it"


def test_a_candidate_whose_answers_may_differ_is_judged_by_failures() -> None:
    record = reported(taping_at(judge={"output": None}), MirrorOutcomes(2000, differing=2000))
    assert at(ticked(record, 6.0)) == (STEP, 10)
    failing = reported(taping_at(judge={"output": None}), MirrorOutcomes(950, failed=50))
    assert at(ticked(failing, 2.0))[0] is RolloutState.ROLLING_BACK


def test_near_ties_do_not_count() -> None:
    record = reported(taping_at(), MirrorOutcomes(2000, near_ties=1900))
    assert "0 of 100 rows" in ticked(record, 6.0).status.reason


def test_each_part_is_counted_once_and_only_in_its_step() -> None:
    record = reported(taping_at(), MirrorOutcomes(300))
    again = reported(record, MirrorOutcomes(300))
    assert again.status.total.mirror.compared == 300
    other = reported(record, MirrorOutcomes(300), tape="other")
    assert other.status.total.mirror.compared == 600
    late = StepOutcomes("r", 0, Outcomes(mirror=MirrorOutcomes(9)), part=TapePart("node", 9))
    assert taping.counted(record, late, 1.0) is record


def test_paused_by_a_person_it_begins_anew() -> None:
    record = machine.paused(reported(taping_at(), MirrorOutcomes(300)), "wait", 2.0, "ann")
    again = taping.resumed(record, 9.0, "ann")
    assert at(again) == (TAPE, 0) and again.status.step == record.status.step + 1
    assert again.status.tape is not None and not again.status.tape.tapes
    assert at(changed(record, RolloutChange("resume"), "ann", 9.0)) == (TAPE, 0)
    weighted = changed(taping_at(), RolloutChange("set", weight=40), "ann", 9.0)
    assert at(weighted) == (STEP, 40), "a person's word"


def test_a_server_that_starts_again_goes_on_there() -> None:
    record = reported(taping_at(first=30), MirrorOutcomes(300))
    assert restarts.recovered((1, 2), record, 9.0) is record, "a manager's restart"
    assert records.decoded(records.encoded(record)).status.tape == record.status.tape
    loading = restarts.recovered((), record, 9.0)
    assert at(loading)[0] is RolloutState.LOADING
    again = taping.loaded(loading, 10.0)
    assert at(again) == (TAPE, 0) and at(ticked(reported(again, MirrorOutcomes(600)), 16.0)) == (STEP, 30)
    decided = ticked(reported(taping_at(tape={"required": True}), MirrorOutcomes(9)), 6.0)
    paused = taping.loaded(restarts.recovered((), decided, 9.0), 10.0)
    assert at(paused) == (PAUSED, 0) and paused.status.reason == decided.status.reason
    assert at(taping.resumed(paused, 11.0, "ann")) == (STEP, 10)
    lost = restarts.found(split_of(record), record.status.spec, "f", 9.0)
    assert at(lost) == (PAUSED, 0) and at(taping.resumed(lost, 10.0, "ann")) == (TAPE, 0)


def test_a_record_with_a_tape_is_small() -> None:
    record = taping_at()
    worst = tuple(WorstRow("i" * 30, "d" * 64, 9.0, "w" * 100) for _ in range(10))
    part = StepOutcomes("r", 1, Outcomes(mirror=MirrorOutcomes(9)), part=TapePart("node", 3, worst))
    record = taping.counted(record, part, 1.0)
    stored = records.encoded(record)
    assert len(stored) < records.MAX_BYTES
    kept = records.decoded(stored).status
    assert len(kept.history) == 2 and kept.tape is not None and len(kept.tape.worst) == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "tape: {requests: 900}\njudge: {output: {min_agreement: 0.995}}",
            r"tape\.requests: 900 .* takes 919",
        ),
        ("tape: {}\njudge: {output: {min_agreement: 1}}", "tape: no number of requests shows"),
        ("tape: {}\nstrategy: resource_preserving", "tape: with strategy resource_preserving"),
        ("tape: {speed: min}", r"tape\.speed"),
        ("tape: {request: 5}", "tape: Object contains unknown field `request`"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InferError, match=reason):
        parse_policy(text)


async def report(made: RepositoryManager, rollouts: RolloutBench, **fields: Any) -> RolloutStatus:
    rollouts.reports += 1
    now = await status(made)
    outcomes = fields.pop("outcomes", Outcomes())
    step = StepOutcomes(now.rollout, now.step, outcomes, **fields)
    await made.report_outcomes(msgspec.msgpack.encode(OutcomeReport("i", rollouts.reports, [step])))
    return await status(made)


POLICY = "tape: {}\nsteps: [10]\njudge: {output: {min_agreement: 0.99}}\n"


async def test_a_manager_keeps_what_it_has_acknowledged(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping(POLICY)
    assert state(await status(made)) == (TAPE, 0) and ready(made) == [1, 2]
    found = split(made)
    assert found is not None and found.tape is not None and found.weight == 0
    await report(made, rollouts, found=TapeFound("node", 600, 0b11))
    part = TapePart("node", 0, (WorstRow("i-1", "x", 2.0, "y: values"),))
    await report(made, rollouts, outcomes=Outcomes(mirror=MirrorOutcomes(300, 1)), part=part)
    again = await rollouts.manager(load_model=["m"])
    assert state(await status(again)) == (TAPE, 0)
    known = (await status(again)).tape
    assert known is not None and known.worst == part.worst and known.mirror.compared == 300
    await report(again, rollouts, outcomes=Outcomes(mirror=MirrorOutcomes(300, 1)), part=part)
    second = TapePart("node", 1)
    await report(again, rollouts, outcomes=Outcomes(mirror=MirrorOutcomes(400)), part=second)
    assert state(await rollouts.after(again, 6)) == (STEP, 10)
    assert "tape: 1 of 700 rows" in (await status(again)).reason


async def test_a_bad_candidate_is_rejected_before_a_request(rollouts: RolloutBench) -> None:
    rollouts.judge = judge  # type: ignore[method-assign]
    made = await rollouts.stepping(POLICY)
    bad = Outcomes(mirror=MirrorOutcomes(300, differing=30))
    await report(made, rollouts, found=TapeFound("node", 600, 0b11))
    await report(made, rollouts, outcomes=bad, part=TapePart("node", 0))
    await rollouts.after(made)
    assert state(await rollouts.after(made)) == (FAILED, 0) and ready(made) == [1]
    seen = await status(made)
    assert [event.percent for event in seen.history] == [0] * len(seen.history)


async def test_a_person_may_end_it(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping(POLICY)
    assert state(await act(made, "pause")) == (PAUSED, 0)
    assert state(await act(made, "resume")) == (TAPE, 0)
    assert state(await act(made, "promote"))[1] == 100
