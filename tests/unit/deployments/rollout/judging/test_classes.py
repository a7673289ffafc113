"""The mix of classes of two versions: told apart where it differs, however the load changes."""

import numpy as np

from app.core.rollout.outcomes import Outcomes, VersionOutcomes
from app.core.rollout.spec import ClassRule, JudgeRules
from deployments.rollout.judging.classes import ClassOdds, Mix
from deployments.rollout.judging.intervals import UNSEEN, Intervals
from deployments.rollout.judging.judge import judge

RULES = JudgeRules(errors=None, latency=None, compute=None, drift=ClassRule())
NAMES = "abc"


def mix(rng: np.random.Generator, shares: list[float], number: int) -> dict[str, int]:
    counts = rng.multinomial(number, shares).tolist()
    return {name: count for name, count in zip(NAMES, counts, strict=True) if count}


def outcomes(stable: dict[str, int], candidate: dict[str, int]) -> Outcomes:
    return Outcomes(VersionOutcomes(classes=stable), VersionOutcomes(classes=candidate))


def alarms(rng: np.random.Generator, change: float, seconds: int = 300) -> int:
    """Return after how many seconds there is an alarm, 0 for none, where what clients ask for changes."""
    intervals: Intervals = UNSEEN
    for second in range(1, seconds + 1):
        often = 0.5 + 0.4 * np.sin(second / 20)
        shares = [often, 0.8 - 0.8 * often + 0.0, 0.2 - 0.2 * often]
        ours = [max(shares[0] - change, 0.0), shares[1], shares[2] + min(change, shares[0])]
        seen = outcomes(mix(rng, shares, 100), mix(rng, ours, 10))
        intervals = intervals.add("ingress", seen).judged(RULES)
        if judge(RULES, seen, intervals).alarms:
            return second
    return 0


def test_a_version_that_answers_with_another_class_more_often_is_found() -> None:
    rng = np.random.default_rng(1)
    assert all(0 < alarms(rng, 0.2) < 60 for _ in range(10))


def test_versions_that_are_alike_give_no_alarm_while_the_requests_change() -> None:
    rng = np.random.default_rng(2)
    assert [alarms(rng, 0.0) for _ in range(20)] == [0] * 20


def test_an_alarm_names_the_class_and_both_shares() -> None:
    intervals = UNSEEN
    for _ in range(50):
        intervals = intervals.add("ingress", outcomes({"a": 80, "b": 20}, {"a": 5, "b": 5})).judged(RULES)
    (text,) = judge(RULES, Outcomes(), intervals).alarms
    assert text == (
        "classes: 250 of 500 (50.00%) of the candidate's answers are of class 'b', of the stable version's"
        " 1,000 of 5,000 (20.00%); allowed are 2 % more"
    )


def test_a_difference_that_is_allowed_gives_no_alarm() -> None:
    rules = JudgeRules(errors=None, latency=None, compute=None, drift=ClassRule(allowed=0.4))
    intervals = UNSEEN
    for _ in range(50):
        intervals = intervals.add("ingress", outcomes({"a": 80, "b": 20}, {"a": 5, "b": 5})).judged(rules)
    assert judge(rules, Outcomes(), intervals).alarms == ()


def test_an_interval_waits_for_both_versions_and_ingresses_are_apart() -> None:
    intervals = UNSEEN.add("one", outcomes({"a": 5}, {})).add("two", outcomes({}, {"b": 5})).judged(RULES)
    assert intervals.classes == ClassOdds() and set(intervals.mixes) == {"one", "two"}
    assert judge(RULES, Outcomes(), intervals).waiting == "an answer with a class of each version"
    intervals = intervals.add("one", outcomes({}, {"a": 5})).judged(RULES)
    assert set(intervals.mixes) == {"two"} and intervals.classes.seen == Mix({"a": 5}, {"a": 5})
    assert intervals.carried().mixes == {}


def test_classes_are_bounded() -> None:
    many = {f"c{number:03}": 1 for number in range(200)}
    assert len(ClassOdds().after(Mix(many, many)).odds) == 64
