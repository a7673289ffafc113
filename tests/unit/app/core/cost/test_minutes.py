"""The minutes of each version, bounded."""

from app.core.cost.minutes import Minutes, MinuteUse, minute_of


def test_a_minute_is_that_of_its_moments() -> None:
    assert (minute_of(119.9), minute_of(120.0)) == (1, 2)


def test_what_is_added_to_one_minute_adds_up() -> None:
    minutes = Minutes()
    for use in (MinuteUse(7, 1.0, 10), MinuteUse(7, 0.5, 5), MinuteUse(8, 2.0, 20)):
        minutes.add("wine", "1", use)
    assert minutes.of("wine", "1") == [MinuteUse(7, 1.5, 15), MinuteUse(8, 2.0, 20)]
    assert minutes.of("wine", "1", since=8) == [MinuteUse(8, 2.0, 20)]
    assert minutes.of("wine", "1", until=8) == [MinuteUse(7, 1.5, 15)]
    assert minutes.of("wine", "2") == []


def test_a_minute_that_is_over_stays_as_it_is() -> None:
    minutes = Minutes()
    minutes.add("wine", "1", MinuteUse(8, 2.0, 20))
    minutes.add("wine", "1", MinuteUse(7, 1.0, 10))
    assert minutes.of("wine", "1") == [MinuteUse(8, 2.0, 20)]


def test_old_minutes_and_silent_versions_are_forgotten() -> None:
    minutes = Minutes(minutes=2, versions=2)
    for minute in range(5):
        minutes.add("a", "1", MinuteUse(minute, 1.0, 1))
    assert [use.minute for use in minutes.of("a", "1")] == [3, 4]
    minutes.add("b", "1", MinuteUse(5, 1.0, 1))
    minutes.add("a", "1", MinuteUse(5, 1.0, 1))
    minutes.add("c", "1", MinuteUse(5, 1.0, 1))
    assert minutes.of("b", "1") == []
    assert len(minutes.of("a", "1")) == 2
