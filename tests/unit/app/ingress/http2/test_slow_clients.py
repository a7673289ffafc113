"""Clients that read, or grant windows, too slowly."""

import pytest

from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.http2.http2_running import Start
from tests.unit.app.ingress.http2.raw_client import Connect, only_connection
from tests.waiting import until


def test_stalled_responses_are_reset(start: Start, connect: Connect) -> None:
    running = start(min_client_rate=0)
    raw = connect(running)
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    for stream in (1, 3):
        message = wire.PREFIX.pack(0, 4) + b"9999"
        raw.send(raw.call(stream, "blow") + h2.frame(h2.DATA, h2.END_STREAM, stream, message))
        raw.frames(lambda frame: frame.kind == h2.HEADERS)
    connection = only_connection(running)

    async def check(seconds: float) -> int:
        connection.check_time(started + seconds)
        return len(connection._streams)

    started = connection._keepalive.heard
    assert running.run(check(1)) == 2
    assert running.run(check(50)) == 2
    raw.send(h2.window_update(1, 1))  # one made progress: neither is reset
    raw.frames(lambda frame: frame.kind == h2.DATA)
    assert [running.run(check(seconds)) for seconds in (55, 70, 114)] == [2, 2, 2]
    assert running.run(check(116)) == 0
    resets = raw.frames(lambda frame: frame.kind == h2.RST_STREAM and frame.stream == 3)
    assert [frame.stream for frame in resets if frame.kind == h2.RST_STREAM] == [1, 3]


@pytest.mark.parametrize("method", ["blow", "large"])
def test_responses_granted_below_the_minimum_rate_are_reset(
    start: Start, connect: Connect, method: str
) -> None:
    """Of streams too, whose handlers wait meanwhile."""
    running = start(min_client_rate=100, send_buffers=(send_buffers := SendBufferLimit()))
    raw = connect(running)
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    message = h2.frame(h2.DATA, 0, 1, wire.PREFIX.pack(0, 6) + b"900000")
    raw.send(raw.call(1, method) + message + h2.frame(h2.DATA, h2.END_STREAM if method == "blow" else 0, 1))
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    connection = only_connection(running)

    async def check(seconds: float) -> int:
        connection.check_time(begun + seconds)
        return len(connection._streams)

    begun = connection._keepalive.heard
    for second in range(0, 60, 5):
        assert running.run(check(second)) == 1
        raw.send(h2.window_update(1, 16))
        raw.frames(lambda frame: frame.kind == h2.DATA)
    assert running.run(check(61)) == 0
    assert send_buffers.too_slow == 1


def test_client_that_reads_slowly_is_disconnected(start: Start, connect: Connect) -> None:
    """Though its windows are wide, and though further calls are answered meanwhile."""
    running = start(min_client_rate=1_000_000)
    raw = connect(running)
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: h2.MAX_WINDOW}) + h2.window_update(0, 2**30))
    size = 400_000_000
    raw.send(raw.call(1, "blow") + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 9) + b"%d" % size))
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    connection = only_connection(running)
    running.run(until(lambda: connection.buffered_bytes() > 100_000_000))

    async def check(seconds: float) -> bool:
        connection.check_time(begun + seconds)
        return connection._transport.is_closing()

    async def sent() -> int:
        return size - connection.buffered_bytes()

    begun = connection._keepalive.heard
    assert not running.run(check(0))
    before = running.run(sent())
    while running.run(sent()) < before + 70_000_000:
        raw.socket.recv(1 << 20)
    assert not running.run(check(59))  # fast enough
    assert not running.run(check(118))
    raw.socket.recv(1 << 20)
    assert running.run(check(120))
