"""What waits for slow clients is bounded over all of them, and those that are slowest lose first."""

import logging

import pytest

from app.ingress.net.slow_clients import SendBufferLimit


class Client:
    """One that is owed answers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.gone = False

    def unsent(self) -> int:
        return self.size

    def give_up(self) -> None:
        self.size = 0
        self.gone = True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_who_would_take_the_longest_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    """Not the quick client of a large answer, which holds most; not only one that takes nothing at all."""
    clock = Clock()
    unsent = SendBufferLimit(1000, clock)
    trickle, stalled, quick = Client(300), Client(200), Client(900)
    unsent.note(trickle)
    unsent.note(stalled)
    clock.now = 60.0
    trickle.size -= 1
    unsent.note(trickle)
    with caplog.at_level(logging.WARNING):
        unsent.note(quick)
    assert (trickle.gone, stalled.gone, quick.gone) == (True, True, False)
    assert (unsent.total, unsent.ended) == (900, 2)
    [record] = caplog.records
    assert "1399 bytes" in record.message and "ended 2 connections" in record.message


def test_what_was_taken_meanwhile_makes_room() -> None:
    unsent = SendBufferLimit(1000, Clock())
    first, second = Client(900), Client(900)
    unsent.note(first)
    first.size = 50
    unsent.note(second)
    assert not first.gone and not second.gone and unsent.total == 950
    first.size = second.size = 0
    assert unsent.measure() == 0
    assert not unsent.note(first)


def test_nobody_holds_more_than_the_bound_alone() -> None:
    unsent = SendBufferLimit(1000, Clock())
    client = Client(1001)
    assert not unsent.note(client)
    assert client.gone and unsent.total == 0


def test_forgotten_holders_count_no_more() -> None:
    unsent = SendBufferLimit(1000, Clock())
    client = Client(600)
    assert unsent.note(client)
    unsent.forget(client)
    unsent.forget(client)
    assert unsent.total == 0 and not client.gone
