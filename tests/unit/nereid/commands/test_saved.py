"""What a promoted version saves, in words."""

from app.core.rollout.report import Estimate
from app.core.rollout.saving import Saving
from nereid.commands.rollout.saved import saving_lines, saving_rows


def found(value: float, low: float, high: float) -> Saving:
    saved = Estimate(1000 * value, 1000 * low, 1000 * high)
    return Saving(120, 60, 90_000, Estimate(value, low, high), saved, 4.2, 2.1)


def test_a_saving_has_its_interval_and_what_it_comes_to() -> None:
    assert saving_lines(found(0.5, 0.48, 0.52)) == [
        "saving: 50.0 % of the processor time (95 %: 48.0 % to 52.0 %), 500 core-seconds (480 to 520) since "
        "the promotion",
        "2.1 ms a row, the version before at the same load 4.2 ms; 60 minutes beside 120 before the "
        "promotion; 90,000 rows since then",
    ]


def test_an_interval_with_0_shows_no_saving() -> None:
    first, _ = saving_lines(found(0.02, -0.01, 0.05))
    assert first == "no saving shown: 2.0 % of the processor time (95 %: -1.0 % to 5.0 %)"


def test_more_processor_time_is_said() -> None:
    first, _ = saving_lines(found(-0.1, -0.12, -0.08))
    assert first == "no saving: it takes 10.0 % more processor time (saving 95 %: -12.0 % to -8.0 %)"


def test_what_is_not_known_yet_is_said_with_the_reason() -> None:
    waits = Saving(20, 3, 7, waiting="3 of 30 minutes since the promotion")
    assert saving_lines(waits) == ["saving: not known yet: 3 of 30 minutes since the promotion"]
    assert saving_rows(waits) == [("not known yet", "3 of 30 minutes since the promotion")]
    assert saving_lines(None) == [] == saving_rows(None)


def test_a_page_has_the_same_figures() -> None:
    (first, value), (_, saved), _ = saving_rows(found(0.5, 0.48, 0.52))
    assert (first, value) == ("processor time that it saves", "50.0 % (48.0 to 52.0)")
    assert saved == "500.0 core-seconds (480.0 to 520.0)"
