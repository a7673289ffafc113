"""The compiled way of unary calls beside Python's: the same bytes in, the same state and bytes out."""

import gc
import sys
from collections.abc import Iterator
from typing import Any

import hpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.ingress.http2.call import GrpcCall, UnaryCall
from app.ingress.http2.stream import Stream
from app.ingress.http2.windows import CREDIT_FROM
from app.native.choice import missing
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import PREFIX
from tests.unit.app.ingress.http2.planes import (
    BLOCK,
    BLOCKS,
    GREETING,
    PAIRS,
    RESPONSE,
    Pair,
    Side,
    call,
    headers,
    message,
    taken,
    tensors,
)

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

LOW = {
    "max_calls": 9,
    "max_streams": 9,
    "max_buffered_bytes": 20_000,
    "max_control_frames": 40,
    "max_message_size": 10_000,
}
COMPRESSING = {"compression": "low"}


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


sizes = st.sampled_from([0, 1, 100, 4095, 4096, 8192, 16000, 16384, 20000, 50000, 70000])
streams = st.integers(0, 30)
payloads = st.sampled_from(
    [
        message(),
        message(request_id="fail"),
        message(model="refused"),
        message()[:20],
        b"\1" + message()[1:],
        message() + b"\0",
        message() * 2,
        PREFIX.pack(0, 0),
        PREFIX.pack(0, 3) + b"\x3a\x05\0",
        b"",
        b"\0\0",
    ]
)
frames = st.one_of(
    st.builds(call, streams, payloads, st.sampled_from(BLOCKS)),
    st.builds(
        h2.frame,
        st.just(h2.HEADERS),
        st.sampled_from([4, 4, 4, 5, 0, 12, 36, 0x84]),
        streams,
        st.sampled_from(BLOCKS),
    ),
    st.builds(h2.frame, st.just(h2.DATA), st.sampled_from([1, 1, 1, 0, 9, 8, 0x81]), streams, payloads),
    st.builds(h2.window_update, streams, st.sampled_from([0, 1, 5, 70_000, 2**31 - 1, 2**31])),
    st.builds(h2.settings_frame, st.dictionaries(st.integers(3, 5), st.sampled_from([0, 9, 16384, 100_000]))),
    st.builds(h2.rst_stream, streams, st.just(8)),
    st.builds(h2.goaway, streams, st.just(0)),
    st.builds(h2.frame, st.integers(0, 11), st.integers(0, 255), streams, st.binary(max_size=10)),
    st.binary(max_size=20),
)
ordinary = st.tuples(
    payloads | sizes, st.sampled_from(BLOCKS[:5]), st.sampled_from([1 << 20, 1 << 20, 16384, 5000, 900])
)
"""A call of the next number, with DATA or the size of a tensor, and that of frames."""
actions = st.one_of(
    st.lists(ordinary | frames, min_size=1, max_size=4),
    st.sampled_from(["answer", "expire", "second"]),
)


def encoded(action: Any, number: int) -> bytes:
    """Return the frames of an action; `number` is that of the next stream."""
    data = b""
    for each in action:
        if isinstance(each, bytes):
            data += each
        else:
            payload, block, frame = each
            data += call(number, message(payload) if isinstance(payload, int) else payload, block, frame)
            number += 2
    return data


def perform(pair: Pair, action: Any, cut: int) -> None:
    if action == "answer":
        pair.answer()
    elif action in ("expire", "second"):
        for side in pair.sides:
            side.expire() if action == "expire" else side.pass_time(1.0)
    else:
        data = encoded(action, max(1, pair.sides[0].connection._last_stream + 2))
        cut = min(cut, len(data))
        pair.receive(data[:cut])
        pair.receive(data[cut:])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(actions, st.integers(0, 400) | st.integers(0, 80_000)), max_size=8),
    st.sampled_from([{}, LOW, COMPRESSING]),
)
def test_any_frames_have_the_same_effects(steps: list[tuple[Any, int]], limits: dict[str, Any]) -> None:
    pair = Pair(**limits)
    for action, cut in steps:
        perform(pair, action, cut)
        pair.compare()
        if pair.failed():
            return
    pair.close()


def opened(stream: int, block: bytes, flags: int = h2.END_HEADERS) -> bytes:
    return h2.frame(h2.HEADERS, flags, stream, block)


@pytest.mark.parametrize(
    "data",
    [opened(101, BLOCKS[4]), opened(101, BLOCKS[5]), opened(101, BLOCK, 5), opened(1, BLOCK, 5)],
    ids=("an unknown method", "no gRPC", "the end with the headers", "trailers"),
)
def test_python_opens_other_calls(pair: Pair, data: bytes) -> None:
    """After their headers were decoded: only one plane may do that."""
    assert taken(pair, data) == len(data)
    assert taken(pair, opened(103, hpack.Encoder().encode(PAIRS))) > 0


@pytest.mark.parametrize(
    "block",
    [
        *BLOCKS[:4],
        headers(("x-new", "1")),
        headers(("grpc-timeout", "17m"), ("traceparent", "00-1-2-01")),
        hpack.Encoder().encode([*PAIRS, ("x-new", "2"), ("grpc-timeout", "18m")]),
    ],
)
def test_ordinary_calls_are_not_left_to_python(pair: Pair, block: bytes) -> None:
    one = call(101, message(), block) + call(103, message(0), block)
    assert taken(pair, one) == len(one)
    many = [h2.frame(h2.HEADERS, h2.END_HEADERS, number, block) for number in (105, 107)]
    many += [h2.frame(h2.DATA, h2.END_STREAM, number, message(9000)) for number in (107, 105)]
    assert taken(pair, b"".join(many)) == len(b"".join(many))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("part of the headers", h2.frame(h2.HEADERS, 0, 101, BLOCK)),
        ("padded headers", h2.frame(h2.HEADERS, 12, 101, bytes(1) + BLOCK)),
        ("no headers", h2.frame(h2.HEADERS, 4, 101)),
        ("too large headers", h2.frame(h2.HEADERS, 4, 101, bytes((64 << 10) + 1))),
        ("priority", h2.frame(h2.HEADERS, 36, 101, bytes(5) + BLOCK)),
        ("no window", h2.window_update(0, 0)),
        ("too much window", h2.window_update(0, 2**31 - 1)),
        ("a window of the wrong size", h2.frame(h2.WINDOW_UPDATE, 0, 0, bytes(3))),
        ("data for nobody", h2.frame(h2.DATA, 1, 99, message())),
        ("settings", h2.settings_frame({4: 5})),
        ("half of a frame", call(101, message(), BLOCK)[:8]),
    ],
)
def test_other_frames_are_left_to_python(pair: Pair, name: str, data: bytes) -> None:
    assert taken(pair, data) == 0


@pytest.mark.parametrize(
    ("name", "flags", "data"),
    [
        ("more to come", 0, message()),
        ("padded", 9, b"\0" + message()),
        ("compressed", 1, b"\1" + message()[1:]),
        ("no message", 1, b""),
        ("half a prefix", 1, b"\0\0"),
        ("two messages", 1, message() * 2),
        ("half a message", 1, message()[:-1]),
        ("the first long message", 1, message(16384)),
    ],
    ids=str,
)
def test_other_messages_are_left_to_python(pair: Pair, name: str, flags: int, data: bytes) -> None:
    opened = h2.frame(h2.HEADERS, h2.END_HEADERS, 101, BLOCK)
    assert taken(pair, opened + h2.frame(h2.DATA, flags, 101, data)) == len(opened)


@pytest.mark.parametrize(
    ("limits", "data"),
    [
        ({"max_calls": 4}, call(101, message(), BLOCK)),
        ({"max_streams": 4}, call(101, message(), BLOCK)),
        ({"max_message_size": 45}, call(101, message(20), BLOCK)),
        ({"max_buffered_bytes": 600}, call(101, message(500), BLOCK)),
        ({"max_control_frames": 30}, call(101, message(), BLOCK) + h2.window_update(0, 1) * 30),
    ],
)
def test_limits_are_the_same(limits: dict[str, int], data: bytes) -> None:
    pair = Pair(**limits)
    assert taken(pair, data) < len(data)
    pair.close()


def test_each_response_lets_a_client_send_more_control_frames() -> None:
    """As gRPC's own clients do, which send two window updates a call."""
    pair = Pair(max_control_frames=20)
    for number in range(101, 401, 2):
        pair.receive(call(number, message(), BLOCK))
        pair.answer()
    pair.compare()
    assert not pair.failed()
    pair.receive(h2.window_update(0, 1) * 400)
    assert b"too many frames" in pair.sides[0].goaway() and pair.failed()
    pair.close()


def test_credit_for_a_connection_is_the_same(pair: Pair) -> None:
    for side in pair.sides:
        side.connection._received = CREDIT_FROM - len(message())
    pair.receive(call(101, message(), BLOCK))
    pair.compare()
    assert pair.sides[1].connection._received == CREDIT_FROM
    pair.receive(call(103, message(), BLOCK))
    pair.compare()
    assert pair.sides[1].connection._received == 0


def test_a_handler_that_raises_ends_the_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for side in pair.sides:
        monkeypatch.setattr(side.service, "resolve_single", None)
        monkeypatch.setattr(UnaryCall, "fail", None)
    pair.receive(call(101, message(), BLOCK) + call(103, message(), BLOCK))
    pair.compare()
    assert pair.sides[1].connection._failed


def test_every_slot_is_filled(pair: Pair) -> None:
    """One that was added would be without a value otherwise."""
    pair.receive(h2.frame(h2.HEADERS, h2.END_HEADERS, 101, BLOCK))
    python, native = (side.connection._streams[101] for side in pair.sides)
    for made in (python, native):
        assert all(hasattr(made, name) for name in Stream.__slots__)
        assert all(hasattr(made.receiver, name) for name in (*GrpcCall.__slots__, *UnaryCall.__slots__))
        assert isinstance(made.receiver, UnaryCall) and made.receiver._stream is made
    assert gc.is_tracked(native) and gc.is_tracked(native.receiver)


def blocks_left(plane: str) -> int:
    """Return how many more blocks are allocated after many calls of every kind, garbage included."""
    side = Side(plane)
    first, second = (message(), BLOCK), (message(5000), BLOCKS[1])
    long = msgspec.structs.replace(RESPONSE, outputs=tensors(*[(1,)] * 17))
    side.receive(GREETING + call(1, *first) + call(3, *second))

    def run(count: int) -> None:
        for _ in range(count):
            number = side.connection._last_stream + 2
            side.receive(call(number, *first) + call(number + 2, *second))
            side.receive(h2.frame(h2.HEADERS, 4, number + 4, BLOCK) + h2.rst_stream(number + 4, 8))
            side.answer()
            side.answer(lambda _: long)
            side.service.requests.clear()
            side.transport.written.clear()
            side.loop.timers.clear()

    run(20)
    gc.collect()  # until then Python keeps up to 2,000 freed tuples of each size, which count
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(side.state)
    run(200)
    more, garbage = sys.getrefcount(side.state) - references, gc.collect()
    assert more == 0
    return sys.getallocatedblocks() - blocks + garbage


def test_nothing_is_left_behind() -> None:
    gc.disable()
    try:
        assert blocks_left("native") < blocks_left("python") + 100
    finally:
        gc.enable()


def test_arguments_are_checked(pair: Pair) -> None:
    compiled: Any = pair.sides[1].state.compiled
    for arguments in ((), (1, b""), (pair.sides[1].connection,)):
        with pytest.raises(TypeError):
            compiled.receive(*arguments)
    with pytest.raises(TypeError):
        compiled.receive(pair.sides[1].connection, "text")
    with pytest.raises(TypeError):
        compiled.sink(1)
    given: list[object] = []
    sink = compiled.sink(lambda *args: given.append(args), 1, 2, 3)
    for responses in ((), (1, 2)):
        with pytest.raises(TypeError):
            sink(*responses)
    with pytest.raises(TypeError):
        sink(response=1)
    sink(4)
    assert given == [(1, 2, 3, 4)]
    with pytest.raises(TypeError):
        type(sink)()


def test_a_sink_in_a_cycle_is_collected(pair: Pair) -> None:
    compiled: Any = pair.sides[1].state.compiled
    kept: list[object] = []
    kept.append(compiled.sink(kept.append, kept, RESPONSE, None))
    before = sys.getrefcount(compiled)
    assert gc.is_tracked(kept[0])
    del kept
    gc.collect()
    assert sys.getrefcount(compiled) < before


def test_types_are_checked() -> None:
    side = Side("native")
    compiled: Any = side.state.compiled
    with pytest.raises(TypeError):
        type(compiled)((int,), None, {}, None, b"", b"", (), b"", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(TypeError):
        type(compiled)((int,) * 12, None, {}, None, b"", b"", (), b"", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
