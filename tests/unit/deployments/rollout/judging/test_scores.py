"""The rule `score`: alarms, acceptance, and how often it is wrong, simulated."""

import math

import numpy as np
import pytest

from app.core.feedback.figures import Scores
from app.core.rollout.spec import ScoreRule
from deployments.rollout.judging.scores import ACCEPTED, Compared, Pair, compare, fine, holds, worse

ALARM = math.log(1000)
ACCEPT = -math.log(1 - ACCEPTED)


def binary(number: int, right: int) -> Scores:
    return Scores(number, number, right, right, number)


def outcome(
    drop: float, allowed: float, *, seed: int, accuracy: float = 0.9, minutes: int = 100, share: float = 0.5
) -> str:
    """Return what a rollout ends in that is looked at each minute, with 1,000 labels in each.

    The accuracy of both versions varies over the day by five points either way.
    """
    draw = np.random.default_rng(seed)
    pairs = []
    for minute in range(minutes):
        hard = 0.05 * math.sin(minute / 8)
        sizes = draw.binomial(1000, [1 - share, share])
        right = draw.binomial(sizes, [accuracy + hard, accuracy + hard - drop])
        pairs.append(Pair(*(binary(int(n), int(k)) for n, k in zip(sizes, right, strict=True))))
        compared = compare(pairs)
        if worse(compared, allowed) > ALARM:
            return "alarm"
        if fine(compared, allowed) > ACCEPT:
            return "accepted"
    return "inconclusive"


def ends(drop: float, runs: int = 40, allowed: float = 0.01, **changed: float) -> dict[str, int]:
    found = [outcome(drop, allowed, seed=seed, **changed) for seed in range(runs)]  # type: ignore[arg-type]
    return {name: found.count(name) for name in ("alarm", "accepted", "inconclusive")}


def test_a_candidate_three_points_worse_never_takes_over() -> None:
    assert ends(0.03) == {"alarm": 40, "accepted": 0, "inconclusive": 0}


def test_an_equal_one_takes_over_in_19_of_20() -> None:
    found = ends(0.0)
    assert found["alarm"] == 0
    assert found["accepted"] >= 38


def test_one_that_loses_what_is_allowed_is_mostly_left_open() -> None:
    found = ends(0.01)
    assert found["alarm"] == 0
    assert found["accepted"] <= 2


def test_a_small_share_needs_longer_and_is_no_more_often_wrong() -> None:
    assert ends(0.03, runs=10, share=0.05)["accepted"] == 0
    assert ends(0.0, runs=10, share=0.05)["alarm"] == 0


@pytest.mark.slow
def test_rates_of_wrong_ends_in_hundreds_of_runs() -> None:
    """At the limit 5 % are accepted at most and 0.1 % get an alarm, however often one looks."""
    at_limit, equal, bad = ends(0.01, 400), ends(0.0, 400), ends(0.03, 400)
    assert at_limit["alarm"] <= 2 and at_limit["accepted"] <= 28, at_limit
    assert equal["alarm"] == 0 and equal["accepted"] >= 380, equal
    assert bad["accepted"] == 0, bad


def test_minutes_of_one_version_say_nothing() -> None:
    alone = [Pair(binary(1000, 900), Scores()), Pair(Scores(), binary(1000, 100))]
    assert compare(alone) == Compared()
    assert worse(compare(alone), 0.01) == fine(compare(alone), 0.01) == -math.inf
    assert holds(ScoreRule(), compare(alone)) == (
        "score: 0 scored answers of the candidate and 0 of the stable version at the same time, at least "
        "100 of each are needed"
    )


def test_versions_are_compared_within_minutes() -> None:
    """Both are as good at any time, but the candidate got more of the requests of the hard hours."""
    pairs = [Pair(binary(9000, 8550), binary(1000, 950)), Pair(binary(1000, 700), binary(9000, 6300))]
    compared = compare(pairs)
    assert compared.drop == pytest.approx(0.0)
    assert worse(compared, 0.01) < 0


def test_what_holds_a_candidate_is_told_with_how_many_more_would_do() -> None:
    compared = compare([Pair(binary(500, 450), binary(500, 445))])
    text = holds(ScoreRule(0.02), compared)
    assert text.startswith(
        "score: by 500 scored answers of the candidate and 500 of the stable version at the same time, it is "
        "lower by -2.8"
    )
    assert text.endswith(" more of the candidate tell")
    assert holds(ScoreRule(0.2), compared) == ""


def test_scores_between_0_and_1_are_judged_too() -> None:
    draw = np.random.default_rng(3)

    def scores(mean: float) -> Scores:
        drawn = np.clip(draw.normal(mean, 0.1, 2000), 0, 1)
        return Scores(2000, 2000, float(drawn.sum()), float((drawn * drawn).sum()), 2000)

    assert holds(ScoreRule(0.02), compare([Pair(scores(0.6), scores(0.6))])) == ""
    assert worse(compare([Pair(scores(0.6), scores(0.5))]), 0.02) > ALARM


def test_answers_that_are_all_right_are_not_certain() -> None:
    few = compare([Pair(binary(120, 120), binary(120, 120))])
    assert fine(few, 0.01) < ACCEPT
    assert fine(compare([Pair(binary(9000, 9000), binary(9000, 9000))]), 0.01) > ACCEPT
