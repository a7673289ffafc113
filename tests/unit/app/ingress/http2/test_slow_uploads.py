"""Clients that send the request of a call too slowly."""

from collections.abc import Callable

import pytest

from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.http2.http2_running import Running, Start
from tests.unit.app.ingress.http2.raw_client import Connect, Raw, decoded, only_connection

RATE, PERIOD = 100, 60.0
SLOW = {
    "grpc-status": "4",
    "grpc-message": "the request arrives too slowly: less than 6000 bytes in 60 seconds",
}
LENGTH = 30_000
PREFIX = wire.PREFIX.pack(0, LENGTH)
Check = Callable[[float], int]


def data(stream: int, payload: bytes, end: bool = False) -> bytes:
    return h2.frame(h2.DATA, h2.END_STREAM if end else 0, stream, payload)


def receive(raw: Raw, running: Running, frames: bytes) -> None:
    """Send frames, and wait until the server has handled them."""
    raw.send(frames + h2.frame(h2.PING, 0, 0, bytes(8)))
    raw.frames(lambda frame: frame.kind == h2.PING and bool(frame.flags & h2.ACK))


def trailers(raw: Raw, stream: int) -> dict[str, str]:
    ends = h2.END_HEADERS | h2.END_STREAM
    frames = raw.frames(lambda frame: (frame.kind, frame.flags, frame.stream) == (h2.HEADERS, ends, stream))
    return {key: value for key, value in decoded(frames[-1].payload) if key.startswith("grpc-")}


@pytest.fixture
def limits() -> SendBufferLimit:
    return SendBufferLimit()


@pytest.fixture
def running(start: Start, limits: SendBufferLimit) -> Running:
    return start(min_client_rate=RATE, min_ping_interval_s=0.0, send_buffers=limits)


@pytest.fixture
def raw(running: Running, connect: Connect) -> Raw:
    return connect(running)


@pytest.fixture
def check(running: Running, raw: Raw) -> Check:
    """Checks the times at a second of the connection's life; returns the number of its calls."""

    async def checked(second: float) -> int:
        connection = only_connection(running)
        connection.check_time(1000.0 + second)
        connection._output.flush()
        return len(connection._streams)

    return lambda second: running.run(checked(second))


def test_a_trickle_is_refused_and_harms_no_other_call(
    running: Running, raw: Raw, check: Check, limits: SendBufferLimit
) -> None:
    receive(raw, running, raw.call(1) + data(1, PREFIX))
    assert check(0) == 1
    for second in range(1, 61):
        receive(raw, running, data(1, b"x"))
        assert check(second) == 1
    assert check(PERIOD + 1) == 0
    assert trailers(raw, 1) == SLOW
    assert limits.too_slow == 1
    assert running.server.state.buffered == 0 and running.server.state.calls == 0
    message = wire.PREFIX.pack(0, 4) + b"9999"
    receive(raw, running, data(1, b"more of what nobody wants") + raw.call(3) + data(3, message, end=True))
    assert raw.frames(lambda frame: frame.kind == h2.DATA)[-1].payload == message


@pytest.mark.parametrize("sent", [b"", PREFIX[:3], wire.PREFIX.pack(0, 4) + b"9999"])
def test_a_call_that_never_ends_its_request_is_refused(
    running: Running, raw: Raw, check: Check, sent: bytes
) -> None:
    receive(raw, running, raw.call(1) + data(1, sent))
    assert [check(second) for second in (0, 60, 61)] == [1, 1, 0]
    assert trailers(raw, 1) == SLOW


def test_a_message_at_the_minimum_rate_is_received(running: Running, raw: Raw, check: Check) -> None:
    receive(raw, running, raw.call(1) + data(1, PREFIX))
    for second in range(LENGTH // RATE):
        receive(raw, running, data(1, b"x" * RATE))
        assert check(second) == 1
    receive(raw, running, data(1, b"", end=True))
    frames = raw.frames(lambda frame: frame.kind == h2.DATA and frame.stream == 1)
    assert frames[-1].payload[:5] == PREFIX


def test_a_stream_may_be_silent_between_messages(running: Running, raw: Raw, check: Check) -> None:
    receive(raw, running, raw.call(1, "both"))
    assert [check(second) for second in (0, 100, 200)] == [1, 1, 1]
    receive(raw, running, data(1, wire.PREFIX.pack(0, 4) + b"9999"))
    assert [check(second) for second in (300, 400)] == [1, 1]
    receive(raw, running, data(1, PREFIX))
    assert [check(second) for second in (500, 560, 561)] == [1, 1, 0]
    assert trailers(raw, 1) == SLOW


def test_a_stream_of_many_messages_is_not_slow(running: Running, raw: Raw, check: Check) -> None:
    """Each check finds it within a message, of which there is no more each time."""
    receive(raw, running, raw.call(1, "both"))
    whole = wire.PREFIX.pack(0, 4) + b"9999"
    receive(raw, running, data(1, whole[:6]))
    for second in range(200):
        receive(raw, running, data(1, whole[6:] + whole[:6]))
        assert check(second) == 1


def test_nothing_is_slow_while_the_server_does_not_read(running: Running, raw: Raw, check: Check) -> None:
    receive(raw, running, raw.call(1) + data(1, PREFIX))
    assert check(0) == 1
    connection = only_connection(running)
    running.loop.call_soon_threadsafe(connection.pause_writing)
    assert [check(second) for second in (61, 200)] == [1, 1]
    running.loop.call_soon_threadsafe(connection.resume_writing)
    assert [check(second) for second in (201, 261, 262)] == [1, 1, 0]


def test_without_a_timeout_nothing_is_slow(start: Start, connect: Connect) -> None:
    running = start(read_timeout_s=0.0, min_ping_interval_s=0.0)
    raw = connect(running)
    receive(raw, running, raw.call(1))

    async def checked(second: float) -> int:
        only_connection(running).check_time(1000.0 + second)
        return len(only_connection(running)._streams)

    assert [running.run(checked(second)) for second in (0, 1000)] == [1, 1]
