"""Pauses that grow with each failure."""

from app.core.system.pauses import growing_pause


def test_a_pause_doubles_up_to_the_longest() -> None:
    assert [growing_pause(failures, 0.5, 3.0) for failures in range(-1, 6)] == [0, 0, 0.5, 1, 2, 3, 3]
    assert growing_pause(10**9, 1.0, 60.0) == 60
