"""How much of new prompts is read beside running texts."""

import pytest

from backends.packaged.llm.engine.pace import LEAST, LONGEST_S, SHARE, Pace, shares


def test_reading_takes_less_than_a_step_of_running_texts() -> None:
    pace = Pace(2048)
    assert pace.budget(3) == 0  # it is not known yet how long one takes
    pace.observe(3, 0, 0.02)
    first = pace.budget(3)
    pace.observe(3, first, 0.02 + first * 0.0001)
    assert pace.budget(3) == pytest.approx(SHARE * 0.02 / 0.0001, abs=1)


def test_step_without_prompts_is_measured_again() -> None:
    pace = Pace(2048)
    pace.observe(1, 0, 0.01)
    budgets = []
    for _ in range(70):
        budgets.append(pace.budget(1))
        pace.observe(1, budgets[-1], 0.01 + 0.0001 * budgets[-1])
    assert 2 <= budgets.count(0) <= 3 and min(budget for budget in budgets if budget) >= LEAST


def test_reading_alone_is_bounded_by_time_and_tokens() -> None:
    pace = Pace(500)
    pace.observe(0, 100, 0.1)
    assert pace.budget(0) == LONGEST_S / 0.001
    pace = Pace(500)
    pace.observe(0, 100, 0.001)
    assert pace.budget(0) == 500


@pytest.mark.parametrize(
    ("unread", "budget", "expected"),
    [
        ([500, 3, 40], 100, [57, 3, 40]),
        ([500, 500], 100, [50, 50]),
        ([500], 100, [100]),
        ([5, 9], 100, [5, 9]),
        ([5, 5, 5], 2, [1, 1, 0]),
        ([7], 0, [0]),
    ],
)
def test_prompts_share_a_step(unread: list[int], budget: int, expected: list[int]) -> None:
    assert shares(unread, budget) == expected
