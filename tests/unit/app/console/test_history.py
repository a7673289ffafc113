"""Rings of figures."""

from app.console.figures import FIELDS
from app.console.history import COARSE, FINE, History

NOW = 1_000_000.0


def values(rate: float) -> list[float]:
    return [rate, *(0.0 for _ in FIELDS[1:])]


def test_seconds_are_kept_in_order_and_gaps_are_none() -> None:
    history = History()
    for second in (0, 1, 3):
        history.write(NOW + second, {"a:1": values(second)})
    found = history.read("a:1", 6, NOW + 4)
    assert found["rate"] == [None, 0, 1, None, 3, None]
    assert (found["step_s"], found["ends_at"]) == (1, NOW + 4)


def test_ten_seconds_are_their_mean() -> None:
    history = History()
    for second in range(20):
        history.write(NOW + second, {"a:1": values(second)})
    found = history.read("a:1", 3600, NOW + 19)
    assert found["step_s"] == 10 and len(found["rate"]) == COARSE.slots
    assert found["rate"][-3:] == [None, 4.5, 14.5]


def test_old_seconds_make_room() -> None:
    history = History()
    for second in range(FINE.slots + 5):
        history.write(NOW + second, {"a:1": values(second)})
    found = history.read("a:1", FINE.slots, NOW + FINE.slots + 4)
    assert found["rate"][0] == 5 and found["rate"][-1] == FINE.slots + 4
    history.write(NOW + 5000, {"a:1": values(1)})
    assert history.read("a:1", 300, NOW + 5000)["rate"][:-1] == [None] * 299


def test_bytes_are_bounded_and_places_of_versions_that_are_gone_are_used_again() -> None:
    history = History(max_bytes=50 * (FINE.slots + COARSE.slots) * len(FIELDS) * 4)
    history.write(NOW, {f"m{number}:1": values(number) for number in range(80)})
    assert history.nbytes <= 50 * (FINE.slots + COARSE.slots) * len(FIELDS) * 4
    assert history.read("m49:1", 1, NOW)["rate"] == [49]
    assert history.read("m60:1", 1, NOW)["rate"] == [None]
    history.keep({"m49:1"})
    history.write(NOW + 1, {"m60:1": values(6), "m49:1": values(4)})
    assert history.read("m60:1", 2, NOW + 1)["rate"] == [None, 6]
    assert history.read("m49:1", 2, NOW + 1)["rate"] == [49, 4]
