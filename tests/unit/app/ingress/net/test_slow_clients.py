"""The limit on buffered responses evicts the slowest senders first."""

import logging

import pytest

from app.ingress.net.slow_clients import SendBufferLimit


class Client:
    """A sender that buffers `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.evicted = False

    def buffered_bytes(self) -> int:
        return self.size

    def evict(self) -> None:
        self.size = 0
        self.evicted = True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_slowest_drain_rate_is_evicted_first(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the fast client of a large response, nor only a client that reads nothing."""
    clock = Clock()
    send_buffers = SendBufferLimit(1000, clock)
    trickle, stalled, quick = Client(300), Client(200), Client(900)
    send_buffers.update(trickle)
    send_buffers.update(stalled)
    clock.now = 60.0
    trickle.size -= 1
    send_buffers.update(trickle)
    with caplog.at_level(logging.WARNING):
        send_buffers.update(quick)
    assert (trickle.evicted, stalled.evicted, quick.evicted) == (True, True, False)
    assert (send_buffers.total, send_buffers.evicted) == (900, 2)
    [record] = caplog.records
    assert "1399 bytes" in record.message and "evicted 2 slow connections" in record.message


def test_drained_bytes_are_not_counted() -> None:
    send_buffers = SendBufferLimit(1000, Clock())
    first, second = Client(900), Client(900)
    send_buffers.update(first)
    first.size = 50
    send_buffers.update(second)
    assert not first.evicted and not second.evicted and send_buffers.total == 950
    first.size = second.size = 0
    assert send_buffers.measure() == 0
    assert not send_buffers.update(first)


def test_single_sender_over_the_limit_is_evicted() -> None:
    send_buffers = SendBufferLimit(1000, Clock())
    client = Client(1001)
    assert not send_buffers.update(client)
    assert client.evicted and send_buffers.total == 0


def test_removed_sender_is_not_counted() -> None:
    send_buffers = SendBufferLimit(1000, Clock())
    client = Client(600)
    assert send_buffers.update(client)
    send_buffers.remove(client)
    send_buffers.remove(client)
    assert send_buffers.total == 0 and not client.evicted
