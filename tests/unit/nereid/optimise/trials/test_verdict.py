"""What figures of a trial mean."""

import pytest
from msgspec.structs import replace

from nereid.optimise.trials.verdict import Seen, Wanted, hopeless, judge, ratios

WANTED = Wanted(agreement=0.99, confidence=0.99, gain=1.1)
GOOD = Seen(rows=1400, compared=1400, bad=3, near_ties=100, ratio=1.6, low=1.5, high=1.7, noise=0.001)


@pytest.mark.parametrize(
    ("seen", "status", "why"),
    [
        (GOOD, "fits", "99.77% of 1,300 rows agree; 1.60 times as fast (1.50 to 1.70)"),
        (replace(GOOD, bad=40), "refused", "40 of 1,300 rows differ, 96.92% agree"),
        (
            replace(GOOD, ratio=0.4, low=0.3, high=0.5),
            "refused",
            "0.40 times as fast (0.30 to 0.50): less than 1.1",
        ),
        (replace(GOOD, rows=200, compared=200, bad=0), "inconclusive", "more rows without one would show"),
        (replace(GOOD, low=1.05), "inconclusive", "1.1 is not shown"),
        (replace(GOOD, noise=1.2), "inconclusive", "they are too tight"),
        (Seen(), "inconclusive", "more rows"),
    ],
)
def test_verdicts(seen: Seen, status: str, why: str) -> None:
    found, text = judge(seen, WANTED)
    assert found == status and why in text


def test_rows_that_cannot_help_any_more_are_not_asked_for() -> None:
    early = replace(GOOD, compared=96, near_ties=4, bad=9)
    assert hopeless(replace(early, bad=30), WANTED)
    assert not hopeless(replace(early, bad=1), WANTED)
    assert hopeless(replace(early, bad=0, high=0.5), WANTED)
    assert not hopeless(replace(early, compared=32, bad=30), WANTED)  # figures are of some rows at least


def test_the_ratio_is_that_of_pairs() -> None:
    present = [2.0 if number % 7 else 20.0 for number in range(100)]  # what meets one meets the other
    assert ratios(present, [each / 2 for each in present]) == (2.0, 2.0, 2.0)
    assert ratios([], []) == (0.0, 0.0, 0.0)
