"""Scores of models in a rollout: what nodes report, and how a rollout goes on by them."""

import msgspec

from app.core.feedback.figures import Scores
from app.core.feedback.reports import ScoreReport, SlotScores
from app.core.rollout.spec import JudgeRules, RolloutSpec, ScoreRule
from app.core.rollout.status import RolloutState, Verdict
from deployments.rollout.judging.scores import Pair
from deployments.rollout.scores import ScoreBoard
from deployments.rollout.states import machine
from deployments.rollout.states.record import Record

STARTED = 6000.0
MINUTE = 100


RULE = ScoreRule()


def record(rule: ScoreRule | None = RULE, percent: float = 50.0, name: str = "m") -> Record:
    spec = RolloutSpec(steps=(10.0, 50.0), judge=JudgeRules(score=rule))
    made = machine.begun(name, (1, 2), spec, now=STARTED, identity=machine.Identity("r1", "", ""))
    return machine.weighted(made, percent, STARTED, "nereid", "")


def binary(number: int, right: int) -> Scores:
    return Scores(number, number, right, right, number)


def report(
    board: ScoreBoard, version: int, scores: Scores, change: int = 1, node: str = "a", slot: int = MINUTE
) -> None:
    board.add(ScoreReport(node, [SlotScores("m", str(version), slot, scores, change)]))


def test_nodes_are_added_up_and_reports_are_no_differences() -> None:
    board = ScoreBoard()
    for _ in range(3):  # both ingresses of a node report the same, and one again
        report(board, 1, binary(10, 9), 7)
    report(board, 1, binary(9, 8), 6)  # an older one comes late
    report(board, 1, binary(5, 5), 1, "b")
    report(board, 2, binary(4, 1), 3, "b")
    assert board.pairs(record()) == [Pair(binary(15, 14), binary(4, 1))]


def test_minutes_before_the_rollout_and_other_versions_do_not_count() -> None:
    board = ScoreBoard()
    report(board, 1, binary(10, 9), slot=MINUTE - 1)
    report(board, 3, binary(10, 9))
    assert board.pairs(record()) == []


def test_models_without_a_rollout_are_forgotten() -> None:
    board = ScoreBoard()
    report(board, 1, binary(10, 9))
    board.follow({"m"})
    assert len(board.pairs(record())) == 1
    board.follow({"other"})
    assert board.pairs(record()) == []


def test_without_the_rule_nothing_is_judged() -> None:
    board, verdict = ScoreBoard(), Verdict(waiting="for something")
    report(board, 1, binary(10_000, 9_000))
    report(board, 2, binary(10_000, 1_000))
    assert board.judged(record(None), verdict) is verdict


def test_a_candidate_that_is_worse_gets_an_alarm() -> None:
    board = ScoreBoard()
    report(board, 1, binary(20_000, 18_000))
    report(board, 2, binary(20_000, 17_400))
    found = board.judged(record(), Verdict(alarms=("another",), evidence={"errors": 1.0}))
    assert found.alarms == (
        "another",
        "score: 0.8700 of the candidate's 20000 scored answers, 0.9000 of the stable version's 20000 at the "
        "same time; allowed is a drop of 0.01",
    )
    assert found.evidence["score"] > 1000 and found.evidence["errors"] == 1


def test_what_comes_later_is_judged_anew() -> None:
    board = ScoreBoard()
    assert board.judged(record(), Verdict()).holds.startswith("score: 0 scored answers of the candidate")
    report(board, 1, binary(60_000, 54_000))
    report(board, 2, binary(60_000, 54_000), 2)
    found = board.judged(record(), Verdict())
    assert (found.alarms, found.holds) == ((), "")
    assert found.evidence["score"] < 0.1
    report(board, 2, binary(120_000, 106_000), 3)
    assert board.judged(record(), Verdict()).holds


def ticked(percent: float, holds: str, seconds: float) -> Record:
    made = record(percent=percent)
    outcomes = msgspec.structs.replace(made.status.outcomes)
    outcomes.candidate.ok = 1000
    held = machine.with_status(made, outcomes=outcomes, verdict=Verdict(holds=holds))
    return machine.ticked(held, STARTED + seconds)


def test_only_the_last_step_waits_for_scores() -> None:
    assert ticked(10.0, "score: too few", 61).status.percent == 50
    assert ticked(50.0, "score: too few", 61).status.percent == 50
    assert ticked(50.0, "", 61).status.state is RolloutState.PROMOTED


def test_a_rollout_without_enough_scores_is_inconclusive() -> None:
    status = ticked(50.0, "score: too few", 3601).status
    assert (status.state, status.reason) == (
        RolloutState.PAUSED,
        "inconclusive: score: too few in 3601 s",
    )
