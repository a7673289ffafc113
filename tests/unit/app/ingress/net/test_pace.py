"""The minimum rate of a client."""

from app.ingress.net.pace import Pace


def slow(pace: Pace, *seen: tuple[float, float, int]) -> list[bool]:
    return [pace.is_slow(*each) for each in seen]


def test_trickle_is_slow() -> None:
    trickle = [(float(second), 1.0, 16 * (second // 5)) for second in range(0, 70, 5)]
    assert slow(Pace(60, 4096), *trickle) == [False] * 13 + [True]


def test_burst_earns_no_credit() -> None:
    """Else a client could hold the rest for the time that the burst would have taken at the minimum rate."""
    burst = 1 << 30
    assert slow(Pace(60, 4096), (0, 1, 0), (1, 1, burst), (61, 1, burst), (62, 1, burst)) == [False] * 3 + [
        True
    ]


def test_client_that_keeps_the_rate_is_not_slow() -> None:
    assert not any(slow(Pace(60, 100), *((float(second), 1.0, 100 * second) for second in range(10_000))))


def test_client_for_which_nothing_waits_is_not_slow() -> None:
    assert slow(
        Pace(60, 100), (0, 1, 0), (59, 0, 0), (1000, 0, 0), (1001, 2, 0), (1061, 2, 0), (1062, 2, 0)
    ) == ([False] * 5 + [True])


def test_next_transfer_begins_anew() -> None:
    """Though fewer bytes of it have come than of the one before."""
    assert not any(
        slow(Pace(60, 100), *((float(second), second // 50 + 1.0, second % 50) for second in range(999)))
    )


def test_without_a_period_nothing_is_slow() -> None:
    assert not any(slow(Pace(0, 100), (0, 1, 0), (1e9, 1, 0)))


def test_without_a_rate_any_progress_suffices() -> None:
    assert slow(Pace(60, 0), (0, 1, 0), (59, 1, 1), (118, 1, 2), (179, 1, 2)) == [False] * 3 + [True]
