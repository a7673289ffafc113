"""The HTTP/2 server and a bare socket: what no client would send, and what ends a connection."""

import asyncio
import gzip
import socket
import struct
from collections.abc import Callable
from typing import Any

import hpack
import pytest
import uvloop

from app.ingress.http2.stream import Output
from app.ingress.http2.windows import CREDIT_FROM
from app.ingress.net.slow_clients import SendBufferLimit
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from tests.unit.app.ingress.http2.http2_running import WAIT_S, Running, Start
from tests.unit.app.ingress.http2.raw_client import Connect, Raw, decoded, only_connection
from tests.waiting import until


def _streams(raw: Raw, count: int, then: Callable[[int, int], bytes] = lambda *_: b"") -> bytes:
    numbers = range(1, 2 * count, 2)
    return b"".join(raw.call(stream, "hang") + then(stream, h2.CANCEL) for stream in numbers)


def many(frame: bytes, count: int) -> bytes:
    return frame * count


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("rapid reset", lambda raw: _streams(raw, 1200, h2.rst_stream), h2.ENHANCE_YOUR_CALM),
        ("settings flood", many(h2.settings_frame({}), 25_000), h2.ENHANCE_YOUR_CALM),
        ("windows of many streams", lambda raw: _streams(raw, 200) + many(h2.settings_frame({4: 9}), 100),
         h2.ENHANCE_YOUR_CALM),
        ("empty frames", many(h2.frame(99, 0, 0), 25_000), h2.ENHANCE_YOUR_CALM),
        ("pings", many(h2.frame(h2.PING, 0, 0, bytes(8)), 10), h2.ENHANCE_YOUR_CALM),
        ("continuations", h2.frame(h2.HEADERS, 0, 1, b"a") + many(h2.frame(9, 0, 1, b"a" * 9000), 9),
         h2.ENHANCE_YOUR_CALM),
        ("interrupted headers", h2.frame(h2.HEADERS, 0, 1, b"") + h2.settings_frame({}), h2.PROTOCOL_ERROR),
        ("continuation of nothing", h2.frame(h2.CONTINUATION, 0, 1, b""), h2.PROTOCOL_ERROR),
        ("data on an idle stream", h2.frame(h2.DATA, 0, 7, b"x"), h2.PROTOCOL_ERROR),
        ("even stream", h2.frame(h2.HEADERS, h2.END_HEADERS, 2, b"\x88"), h2.PROTOCOL_ERROR),
        ("bad header block", h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\xff\xff\xff"), h2.COMPRESSION_ERROR),
        ("window overflow", h2.window_update(0, h2.MAX_WINDOW), h2.FLOW_CONTROL_ERROR),
        ("window overflow by settings",
         lambda raw: _streams(raw, 1) + h2.window_update(1, h2.MAX_WINDOW - h2.DEFAULT_WINDOW)
         + h2.settings_frame({4: h2.DEFAULT_WINDOW + 1}),
         h2.FLOW_CONTROL_ERROR),
        ("zero window update", h2.window_update(0, 0), h2.FLOW_CONTROL_ERROR),
        ("huge frame", h2.frame_head(1 << 23, h2.DATA, 0, 1), h2.FRAME_SIZE_ERROR),
        ("push", h2.frame(h2.PUSH_PROMISE, 0, 1, bytes(4)), h2.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_protocol_error_closes_the_connection(
    start: Start, name: str, data: Any, code: int, connect: Connect
) -> None:
    # A slow machine needs more than a second for a flood: the limits are a fraction of it.
    running = start(max_control_frames=1000, max_resets=50)
    raw = connect(running)
    raw.send(data(raw) if callable(data) else data)
    assert raw.goaway()[0] == code
    other = connect(running)
    other.send(other.call(1) + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 2) + b"ok"))
    frames = other.frames(lambda frame: bool(frame.flags & h2.END_STREAM) and frame.stream == 1)
    assert any(frame.kind == h2.DATA and frame.payload[5:] == b"ok" for frame in frames)
    assert not running.server.state.buffered


def test_server_stops_while_a_failed_connection_lingers(running: Running, raw: Raw) -> None:
    raw.send(h2.frame(h2.PUSH_PROMISE, 0, 1, bytes(4)))
    assert raw.goaway()[0] == h2.PROTOCOL_ERROR
    running.run(running.server.stop(0.1))


async def test_output_drops_frames_after_its_end() -> None:
    """Such as responses of calls in flight when their connection failed."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    unheard: list[object] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    output = Output(loop, h2.Keepalive(0.0), lambda: False)
    output.transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    output.put(b"before")
    output.end()
    output.put(b"after")
    await asyncio.sleep(0)
    theirs.settimeout(WAIT_S)
    assert await asyncio.to_thread(theirs.recv, 100) == b"before"
    assert await asyncio.to_thread(theirs.recv, 100) == b""
    assert not unheard
    output.transport.abort()
    theirs.close()


def test_pings_while_receiving_data_are_allowed(raw: Raw) -> None:
    """gRPC clients measure the bandwidth by pings."""
    raw.send(raw.call(1, "blow") + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 6) + b"900000"))
    for _ in range(20):
        raw.send(h2.frame(h2.PING, 0, 0, bytes(8)))
        assert raw.frames(lambda frame: frame.kind == h2.PING)[-1].flags == h2.ACK
        raw.send(h2.window_update(0, 20_000) + h2.window_update(1, 20_000))
        assert raw.frames(lambda frame: frame.kind == h2.DATA)[-1].kind == h2.DATA


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_pings_while_one_long_message_is_received_are_allowed(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], Any]
) -> None:
    """The whole message is in the window: nothing more is sent while the client receives it.

    asyncio's transport stops reading meanwhile, uvloop's does not.
    """
    monkeypatch.setattr(asyncio, "new_event_loop", loop)
    raw = connect(start())
    size = 50_000_000
    raw.send(h2.settings_frame({4: 2 * size}) + h2.window_update(0, 2 * size))
    raw.send(raw.call(1, "blow"))
    raw.send(h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 8) + b"%d" % size))
    raw.frames(lambda frame: frame.kind == h2.DATA)
    raw.send(many(h2.frame(h2.PING, 0, 0, bytes(8)), 20))
    for _ in range(20):
        assert raw.frames(lambda frame: frame.kind in (h2.PING, h2.GOAWAY))[-1].kind == h2.PING


def test_pings_while_sending_data_are_allowed(raw: Raw) -> None:
    piece = 1 << 14
    raw.send(raw.call(1, "hang") + h2.frame(h2.DATA, 0, 1, wire.PREFIX.pack(0, 10 * CREDIT_FROM)))
    for _ in range(5):
        raw.send(many(h2.frame(h2.DATA, 0, 1, bytes(piece)), CREDIT_FROM // piece + 1))
        raw.frames(lambda frame: frame.kind == h2.WINDOW_UPDATE and not frame.stream)
        raw.send(h2.frame(h2.PING, 0, 0, bytes(8)))
        assert raw.frames(lambda frame: frame.kind in (h2.PING, h2.GOAWAY))[-1].kind == h2.PING


def test_other_protocol_is_refused(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b"".join(iter(lambda: client.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b"this port speaks gRPC" in received


def test_requests_other_than_grpc_are_refused(raw: Raw) -> None:
    block = hpack.Encoder().encode([(":method", "GET"), (":path", "/")])
    raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, block))
    frames = raw.frames(lambda frame: frame.stream == 1 and frame.flags & h2.END_STREAM)
    headers, body, _ = [frame for frame in frames if frame.stream == 1]
    assert decoded(headers.payload)[0] == (":status", "405")
    assert body.payload == b"this port speaks gRPC"


def test_streams_above_the_limit_are_refused(start: Start, connect: Connect) -> None:
    running = start(max_streams=2)
    raw = connect(running)
    raw.send(b"".join(raw.call(stream, "hang", 0) for stream in (1, 3, 5)))
    frames = raw.frames(lambda frame: frame.kind == h2.RST_STREAM)
    assert frames[-1].stream == 5 and frames[-1].payload == h2.REFUSED_STREAM.to_bytes(4, "big")


def test_window_grows_byte_by_byte(raw: Raw) -> None:
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    raw.send(raw.call(1) + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 4) + b"abcd"))
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    pieces = []
    for _ in range(9):
        raw.send(h2.window_update(1, 1))
        pieces.append(raw.frames(lambda frame: frame.kind == h2.DATA)[-1].payload)
    assert b"".join(pieces) == wire.PREFIX.pack(0, 4) + b"abcd" and set(map(len, pieces)) == {1}
    raw.send(h2.window_update(1, 5))


def test_data_that_a_setting_allows_follows_its_acknowledgement(raw: Raw) -> None:
    """Until then gRPC's C client holds DATA against its old window, and ends the connection."""
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    raw.send(raw.call(1) + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 4) + b"abcd"))
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 100}))
    kinds = [frame.kind for frame in raw.frames(lambda frame: frame.kind == h2.DATA)]
    assert kinds == [h2.SETTINGS, h2.DATA]


def test_repeated_setting_is_applied_once(running: Running, raw: Raw) -> None:
    """Else one frame full of settings would change the windows of every stream for minutes."""
    raw.send(_streams(raw, 100) + h2.frame(h2.SETTINGS, 0, 0, struct.pack(">HL", 4, 99) * 100_000))
    raw.frames(lambda frame: frame.kind == h2.SETTINGS and frame.flags & h2.ACK)
    raw.frames(lambda frame: frame.kind == h2.SETTINGS and frame.flags & h2.ACK)
    connection = only_connection(running)
    assert connection._keepalive._counts[False] < 100


def test_stream_waiting_for_the_connection_window_is_listed_once(running: Running, raw: Raw) -> None:
    """And not at all once it is reset."""
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 1 << 20}))
    for stream in (1, 3, 5):
        message = wire.PREFIX.pack(0, 5) + b"70000"
        raw.send(raw.call(stream, "blow") + h2.frame(h2.DATA, h2.END_STREAM, stream, message))
        raw.frames(lambda frame: frame.kind == h2.HEADERS)
    raw.send(many(h2.window_update(1, 1) + h2.window_update(3, 1), 500) + h2.rst_stream(5, h2.CANCEL))
    raw.send(h2.frame(h2.PING, 0, 0, bytes(8)))
    raw.frames(lambda frame: frame.kind == h2.PING)
    connection = only_connection(running)
    assert [stream.id for stream in connection._output.waiting] == [1, 3]
    raw.send(h2.window_update(0, 1 << 20))
    received = raw.frames(lambda frame: frame.stream == 3 and frame.flags & h2.END_STREAM)
    sent = sum(len(frame.payload) for frame in received if frame.kind == h2.DATA)
    assert sent == 2 * 70_005 - h2.DEFAULT_WINDOW and not connection._output.waiting


def test_data_for_an_ended_call_is_not_buffered(running: Running, raw: Raw) -> None:
    raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
    message = h2.frame(h2.DATA, 0, 1, wire.PREFIX.pack(0, 4) + b"abcd")
    raw.send(raw.call(1, "both", 0, ("grpc-timeout", "50m")) + message)
    raw.frames(lambda frame: frame.kind == h2.HEADERS)
    connection = only_connection(running)
    running.run(until(lambda: connection._streams[1].trailers is not None))
    raw.send(message + h2.window_update(1, 1000))
    raw.frames(lambda frame: frame.kind == h2.RST_STREAM)
    assert not running.server.state.buffered


def test_padding_is_granted_again(raw: Raw) -> None:
    padded = h2.frame(h2.DATA, h2.PADDED, 1, b"\xff" + wire.PREFIX.pack(0, 0) + bytes(255))
    raw.send(raw.call(1, "both") + many(padded, 20_000) + h2.frame(h2.PING, 0, 0, bytes(8)))
    frames = raw.frames(lambda frame: frame.kind == h2.PING)
    assert not [frame for frame in frames if frame.kind == h2.RST_STREAM]


def test_compressed_bomb_is_refused(start: Start, connect: Connect) -> None:
    running = start(max_message_size=10_000)
    raw = connect(running)
    block = raw.encoder.encode(
        [(":method", "POST"), (":path", "/test.Test/echo"), ("content-type", "application/grpc"),
         ("grpc-encoding", "gzip")]
    )  # fmt: skip
    bomb = gzip.compress(bytes(5_000_000))
    raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, block))
    raw.send(h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(1, len(bomb)) + bomb))
    frames = raw.frames(lambda frame: frame.stream == 1)
    assert dict(decoded(frames[-1].payload))["grpc-status"] == "8"


def test_goaway_shows_no_address(raw: Raw) -> None:
    raw.send(h2.frame(h2.HEADERS, h2.END_HEADERS, 1, b"\x40\x7f\xff\xff\xff"))
    code, text = raw.goaway()
    assert (code, text) == (h2.COMPRESSION_ERROR, b"malformed header block")


def test_connection_over_its_age_gets_goaway(start: Start, connect: Connect) -> None:
    running = start(max_age_s=0.1)
    raw = connect(running)
    code, _ = raw.goaway()
    assert code == h2.NO_ERROR and raw.frames(lambda frame: False) == []


def test_silent_client_is_pinged_and_disconnected(start: Start, connect: Connect) -> None:
    running = start(keepalive_s=0.1, keepalive_timeout_s=0.1, keepalive_without_calls=True)
    raw = connect(running)
    frames = raw.frames(lambda frame: False)
    assert frames[-1].kind == h2.PING


@pytest.mark.parametrize("size", [40_000, 65_536, 400_001])
def test_long_messages_fit_windows_of_any_size(raw: Raw, size: int) -> None:
    message = bytes(index * 7 % 251 for index in range(size))
    body = wire.PREFIX.pack(0, size) + message
    frames = [body[start : start + 16_384] for start in range(0, len(body), 16_384)]
    for stream in (1, 3):  # the second is received into the server's own buffer
        raw.send(raw.call(stream, "direct") + b"".join(h2.frame(h2.DATA, 0, stream, each) for each in frames))
        raw.send(h2.frame(h2.DATA, h2.END_STREAM, stream))
        received, last = bytearray(), False
        while not last:
            for frame in raw.reader.feed(raw.socket.recv(65536)):
                if frame.kind == h2.DATA:
                    assert len(frame.payload) <= 16_384
                    received += (
                        b"".join(frame.payload) if isinstance(frame, h2.DataSegments) else frame.payload
                    )
                    grown = len(frame.payload) * 3 // 2 + 1
                    raw.send(h2.window_update(0, grown) + h2.window_update(stream, grown))
                last = last or bool(frame.kind == h2.HEADERS and frame.flags & h2.END_STREAM)
        assert received == body


def test_responses_without_a_window_are_limited_over_all_connections(start: Start, connect: Connect) -> None:
    send_buffers = SendBufferLimit(3_000_000)
    running = start(send_buffers=send_buffers)
    clients = [connect(running) for _ in range(4)]
    for raw in clients:
        raw.send(h2.settings_frame({h2.INITIAL_WINDOW_SIZE: 0}))
        raw.send(
            raw.call(1, "blow") + h2.frame(h2.DATA, h2.END_STREAM, 1, wire.PREFIX.pack(0, 6) + b"900000")
        )
        raw.frames(lambda frame: frame.kind == h2.HEADERS)
    # Three fit. The fourth is the newest; none of the others has read anything, the first for longest.
    assert not any(frame.kind == h2.DATA for frame in clients[0].frames(lambda frame: False))  # it ends
    for raw in clients[1:]:
        raw.send(h2.window_update(1, 1_000_000) + h2.window_update(0, 1_000_000))
        frames = raw.frames(lambda frame: bool(frame.flags & h2.END_STREAM) and frame.kind == h2.HEADERS)
        assert sum(len(frame.payload) for frame in frames if frame.kind == h2.DATA) == 900_005
    assert send_buffers.evicted == 1
    assert not running.run(_measured(send_buffers))


async def _measured(send_buffers: SendBufferLimit) -> int:
    return send_buffers.measure()
