"""The compiled ends of a channel beside Python's: whatever arrives, both do the same."""

import asyncio
import gc
import logging
import struct
import sys
import time
import weakref
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.failures import EXPIRED
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.transport.channel.handshake import Peer
from app.transport.channel.server import ChannelServer
from app.transport.channel.server_connection import ServerConnection
from app.transport.settings import TransportSettings
from app.transport.wire.frames import HEADER_SIZE, Kind, encode_frame
from app.transport.wire.messages import FrameEncoder
from tests import channel_ends
from tests.channel_ends import CALLS, called, served
from tests.unit.app.transport.wire.test_messages import parameters, tensors

extension = pytest.importorskip("app.native.extension")
python = FrameEncoder(TransportSettings(data_plane="python"), None)

TENSOR = Tensor("I", "FP32", (1, 1), b"\0\0\x80?")
ids = st.sampled_from(["", "raise", "crash", "hold", "many", "close", "again"])
streams = st.integers(0, CALLS + 2)


def infer(stream: int, request: InferRequest, left_us: int = 0) -> bytes:
    queue: list[Any] = []
    python.request(queue, stream, request, left_us)
    return b"".join(queue)


def response(stream: int, message: InferResponse) -> bytes:
    queue: list[Any] = []
    python.response(queue, stream, message)
    return b"".join(queue)


few = st.lists(tensors, max_size=2).map(tuple)
requests = st.builds(
    infer,
    streams,
    st.builds(
        InferRequest,
        st.just("m"),
        st.just(""),
        few,
        st.just((RequestedOutput("O"),)),
        ids,
        parameters | st.just({}),
    ),
    st.sampled_from([0, 0, 1000]),
)
responses = st.builds(
    response,
    streams,
    st.builds(InferResponse, st.just("m"), st.just("1"), few, ids, parameters | st.just({}), st.booleans()),
)
others = st.builds(encode_frame, st.sampled_from(list(Kind)), streams, st.sampled_from([b"", b"\x91\x07"]))
frames = st.lists(st.one_of(requests, responses, others), max_size=8).map(b"".join)


def check(data: bytes, piece: int) -> None:
    assert served("native", data, piece) == served("python", data, piece)
    assert called("native", data, piece) == called("python", data, piece)


@settings(max_examples=60)
@given(frames, st.sampled_from([7, 100, 1 << 16]))
def test_frames_have_the_same_effect(data: bytes, piece: int) -> None:
    check(data, piece)


@settings(max_examples=60)
@given(frames, st.data())
def test_changed_frames_have_the_same_effect(data: bytes, draw: st.DataObject) -> None:
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        start = draw.draw(st.integers(0, len(changed)))
        changed[start : start + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=3))
    check(bytes(changed), draw.draw(st.sampled_from([9, 1 << 16])))


@settings(max_examples=20)
@given(st.binary(max_size=80), st.sampled_from([1, 1 << 16]))
@example(encode_frame(Kind.PING) + bytes(HEADER_SIZE), 1 << 16)
def test_any_bytes_have_the_same_effect(data: bytes, piece: int) -> None:
    check(data, piece)


def header(kind: int, meta: int, payload: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<BBHIQQQ", kind, 1, reserved, meta, payload, 1, 0)


@pytest.mark.parametrize("kind", [Kind.INFER, Kind.RESPONSE])
@pytest.mark.parametrize(
    "bytes_after",
    [
        header(1, 8194) + bytes(8194),
        header(1, 1 << 31),
        header(1, 2, payload=1 << 63) + bytes(64),
        header(1, 0, payload=4) + bytes(64),
        header(1, 0, reserved=1) + bytes(64),
        header(99, 0),
        header(1, 5),
    ],
)
def test_frames_beyond_the_limits_have_the_same_effect(kind: Kind, bytes_after: bytes) -> None:
    """The limits are those of `channel_ends`: 8 KiB of meta, 3 requests in flight."""
    message = infer(1, InferRequest("m", "", (TENSOR,), id="hold")) + response(
        1, InferResponse("m", "1", (TENSOR,))
    )
    check(message + bytes([kind]) + bytes_after[1:], 1 << 16)
    check(bytes([kind]) + bytes_after[1:], 50)


def test_more_requests_than_may_be_in_flight_are_refused_alike() -> None:
    held = [infer(stream, InferRequest("m", "", (TENSOR,), id="hold")) for stream in range(6)]
    check(b"".join(held), 1 << 16)
    ((written, *_), *_), _ = served("native", b"".join(held))
    assert b"Exceeds maximum queue size" in written


def test_a_stream_in_use_ends_the_connection_alike() -> None:
    data = infer(1, InferRequest("m", "", (), id="hold")) * 2
    check(data, 1 << 16)
    ((_, ended, *_), *_), _ = served("native", data)
    assert ended == "aborted"


def test_small_messages_do_not_reach_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("app.transport.wire.frames.FrameDecoder.received", unexpected)
    ((written, *_), *_), requests_seen = served(
        "native", infer(9, InferRequest("m", "", (TENSOR,), id="x"), 1000)
    )
    assert written == response(9, InferResponse("m", "1", (TENSOR,), "x"))
    assert [timed for *_, timed in requests_seen] == [True]
    answers = [response(stream, InferResponse("m", "1", (TENSOR,))) for stream in range(1, CALLS + 1)]
    (_, outstanding, _), responses_seen = called("native", b"".join(answers))
    assert outstanding == 0 and [number for number, _ in responses_seen] == list(range(CALLS))


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_requests_say_how_long_they_may_take(plane: str, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, wire = channel_ends.make_channel(plane)
    encoded: list[Any] = []
    if plane == "native":
        monkeypatch.setattr(FrameEncoder, "request", lambda *arguments: encoded.append(arguments[-1]))
    now, seen = time.monotonic(), list[Any]()
    deadlines = (0.0, now + 1000, now - 1000, now + 6 * 86400)
    calls = [
        channel.send(InferRequest("m", "", (), deadline=deadline), seen.append) for deadline in deadlines
    ]
    assert [bool(call.bucket) for call in calls] == [False, True, True, True]
    assert encoded == []
    await asyncio.sleep(0)
    unlimited, seconds, past, days = left_us(wire.written)
    took_us = (time.monotonic() - now) * 1e6 + 1
    assert unlimited == 0 and past == 1
    assert 1000e6 - took_us <= seconds <= 1000e6 and 6 * 86400e6 - took_us <= days <= 6 * 86400e6
    await asyncio.sleep(channel.settings.deadline_grace + 0.1)
    assert [answer.failure for answer in seen] == [EXPIRED]
    assert channel.outstanding == 3
    channel.connection_lost(None)


@pytest.mark.parametrize("plane", ["native", "python"])
async def test_a_deadline_in_weeks_is_not_sent(plane: str) -> None:
    channel, wire = channel_ends.make_channel(plane)
    for deadline in (time.monotonic() + 8 * 86400, float("inf"), float("nan")):
        channel.send(InferRequest("m", "", (), deadline=deadline), print)
    await asyncio.sleep(0)
    assert left_us(wire.written) == [0, 0, 0]
    channel.connection_lost(None)


def test_connections_leave_nothing_behind() -> None:
    logging.disable(logging.ERROR)
    held = [
        infer(stream, InferRequest("m", "", (TENSOR,), id=kind))
        for stream, kind in enumerate(("hold", "r", "c"))
    ]
    answered = [response(stream, InferResponse("m", "1", (TENSOR,), "raise")) for stream in (1, 2)]
    data = b"".join(held) + b"".join(answered)

    def run() -> None:
        served("native", data)
        called("native", b"".join(answered) + data)

    for _ in range(3):
        run()
    gc.collect()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(InferRequest)
    for _ in range(20):
        run()
    gc.collect()
    logging.disable(logging.NOTSET)
    assert sys.getallocatedblocks() - blocks < 300
    assert sys.getrefcount(InferRequest) - references < 3


async def test_a_dropped_connection_is_collected_with_its_end() -> None:
    handler, config = channel_ends.Handler(), TransportSettings(data_plane="native")
    server = ChannelServer(handler, bytes(16), config)
    connection = ServerConnection(server, config, None, Peer(-1, 0))
    connection.connection_made(channel_ends.Wire())
    channel_ends._feed(connection, infer(1, InferRequest("m", "", (), id="hold")), 1 << 16)
    server.connections.clear()
    seen = weakref.ref(connection)
    handler.held.clear()
    del connection
    gc.collect()
    assert seen() is None


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError):
        extension.ServerEnd()
    with pytest.raises(TypeError):
        extension.ServerEnd(1, 2, {}, 3, 4, 5, 6, 7, 8)
    with pytest.raises(TypeError):
        extension.ClientEnd(1, 2, {}, 3, 4, int, 6, 7, 8)
    messages = python_messages()
    with pytest.raises(TypeError):
        extension.ServerEnd(messages, None, [], print, None, print, 1, 1, 1)
    with pytest.raises(TypeError):
        extension.ClientEnd(messages, None, {}, print, None, int, print, 1, 1)
    end = extension.ServerEnd(messages, None, {}, print, None, print, 1, 1, 1)
    for arguments in ((), (b"", 0), (b"", 0, 1), (b"", 1, 0), (b"", -1, 0), ("", 0, 0), (b"", "", 0)):
        with pytest.raises((TypeError, ValueError)):
            end.take(*arguments)
    assert end.take(b"", 0, 0) == 0


def left_us(written: bytes) -> list[int]:
    """Return how long the requests among some frames may take, in microseconds; 0 for no limit."""
    found: list[int] = []
    while written:
        kind, _, _, meta, _, _, left = struct.unpack_from("<BBHIQQQ", written)
        found += [left] if kind == Kind.INFER else []
        written = written[HEADER_SIZE + meta :]
    return found


def python_messages() -> Any:
    from app.transport.wire.compiled import compiled_messages

    return compiled_messages(TransportSettings(data_plane="native"))
