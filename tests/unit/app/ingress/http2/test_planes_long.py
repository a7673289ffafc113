"""Long messages of unary calls, by C beside Python: however they are cut, the same is received and sent."""

import gc
import random
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from app.ingress.http2.call import UnaryCall
from app.ingress.http2.windows import STREAM_WINDOW
from app.native.choice import missing
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.framing import PREFIX
from app.transport.protocol import ALIGNMENT
from tests.unit.app.ingress.http2.planes import (
    BLOCK,
    BLOCKS,
    GREETING,
    Pair,
    Side,
    call,
    message,
    taken,
)

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
OPENED = h2.settings_frame({4: 1 << 22}) + h2.window_update(0, 1 << 24)
"""Windows for long responses."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Connections that have received a long message, and read into memory that is there."""
    made = Pair()
    made.receive(OPENED + call(99, message(16384), BLOCK))
    made.compare()
    yield made
    made.close()


def in_pieces(pair: Pair, data: bytes, *sizes: int) -> int:
    """Receive data in pieces of the sizes, and what is left; return how much of it C has handled."""
    handled = 0
    for size in sizes:
        handled += taken(pair, data[:size])
        data = data[size:]
    return handled + taken(pair, data)


@pytest.mark.parametrize("frame", [1 << 20, 70_000, 16384, 4000])
@pytest.mark.parametrize("size", [16384, 60_000, 300_000])
def test_long_messages_are_not_left_to_python(pair: Pair, size: int, frame: int) -> None:
    data = call(101, message(size), BLOCK, frame)
    assert taken(pair, data) == len(data)
    data = call(103, message(size), BLOCKS[1], frame)
    head = len(h2.frame(h2.HEADERS, h2.END_HEADERS, 103, BLOCKS[1]) + h2.window_update(103, 5))
    # Behind the first bytes, anywhere, also amid the head of a frame: that one is Python's.
    assert in_pieces(pair, data, head + 40, 9000, 5, 1, 7000) > len(data) - 9 - frame
    data = call(105, message(size), BLOCK)
    assert in_pieces(pair, data, head + 100, 9000, 5, 1, size // 2) == len(data)


def test_frames_of_several_calls_alternate(pair: Pair) -> None:
    cut = [call(number, message(50_000, str(number)), BLOCK, 16384) for number in (101, 103, 105)]
    opened = [len(h2.frame(h2.HEADERS, 4, 101, BLOCK)) + 13 for _ in cut]
    data = b"".join(each[:size] for each, size in zip(cut, opened, strict=True))
    rest = [each[size:] for each, size in zip(cut, opened, strict=True)]
    for start in range(0, len(rest[0]), 9 + 16384):
        data += b"".join(each[start : start + 9 + 16384] for each in rest)
    assert taken(pair, data) == len(data)
    assert [request.id for request in pair.sides[1].service.requests[-3:]] == ["101", "103", "105"]


def test_tensors_are_aligned(pair: Pair) -> None:
    import numpy as np

    pair.receive(call(101, message(200_000, "a" * 77), BLOCK))
    for side in pair.sides:
        data = np.frombuffer(side.service.requests[-1].inputs[0].data, np.uint8)
        assert data.ctypes.data % ALIGNMENT == 0 and not data.flags.writeable


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("more to come", [(0, message(20_000))]),
        ("more than the message", [(0, message(20_000)[:9000]), (1, message(20_000)[9000:] + b"\0")]),
        ("less than the message", [(0, message(20_000)[:9000]), (1, message(20_000)[9000:-1])]),
        ("an end apart", [(0, message(20_000)), (1, b"")]),
        ("nothing amid it", [(0, message(20_000)[:9000]), (0, b""), (1, message(20_000)[9000:])]),
        ("padded", [(0, message(20_000)[:9000]), (9, b"\0" + message(20_000)[9000:])]),
        ("half a prefix", [(0, b"\0\0"), (1, message(20_000)[2:])]),
        ("a prefix alone", [(0, message(20_000)[:5]), (1, message(20_000)[5:])]),
        ("compressed", [(0, b"\1" + message(20_000)[1:9000]), (1, message(20_000)[9000:])]),
        ("too large", [(0, PREFIX.pack(0, 1 << 31) + bytes(20_000)), (1, bytes(20_000))]),
        ("empty, and more", [(0, PREFIX.pack(0, 0)), (1, message(20_000))]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_messages_that_python_judges(pair: Pair, name: str, data: list[tuple[int, bytes]]) -> None:
    sent = h2.frame(h2.HEADERS, h2.END_HEADERS, 101, BLOCK)
    for flags, payload in data:
        sent += h2.frame(h2.DATA, flags, 101, payload)
    for pieces in ((), (60, 4, 1), (9000,)):
        other = Pair()
        other.receive(OPENED + call(99, message(16384), BLOCK))
        in_pieces(other, sent, *pieces)
        other.close()


def test_windows_and_credit_are_the_same(pair: Pair) -> None:
    """Of a message of more than a stream's window: Python gives credit, a quarter of it at once."""
    data = message(STREAM_WINDOW + 1000)
    pair.receive(h2.frame(h2.HEADERS, h2.END_HEADERS, 101, BLOCK))
    for start in range(0, len(data), 300_000):
        end = h2.END_STREAM if start + 300_000 >= len(data) else 0
        pair.receive(h2.frame(h2.DATA, end, 101, data[start : start + 300_000]))
        pair.compare()
    assert len(pair.sides[1].service.requests[-1].inputs[0].data) == STREAM_WINDOW + 1000
    pair.receive(h2.frame(h2.HEADERS, h2.END_HEADERS, 103, BLOCK))
    for _ in range(5):  # of a message that is refused, since it is more than it says
        pair.receive(h2.frame(h2.DATA, 0, 103, PREFIX.pack(0, 700_000) + bytes(900_000)))
        pair.compare()


@pytest.mark.parametrize("limits", [{"max_buffered_bytes": 100_000}, {"max_message_size": 50_000}])
def test_limits_are_the_same(limits: dict[str, Any]) -> None:
    pair = Pair(**limits)
    pair.receive(OPENED + call(99, message(16384), BLOCK))
    for number in (101, 103, 105):
        pair.receive(call(number, message(49_000), BLOCK, 16384))
        pair.compare()
    in_pieces(pair, call(107, message(60_000), BLOCK), 9000, 30_000)
    pair.close()


def test_without_memory_a_call_fails(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("app.ingress.http2.call.allocate_aligned", refuse)
    monkeypatch.setattr("app.protocol.grpc.framing.allocate_private", refuse)
    pair.receive(call(101, message(70_000), BLOCK))
    pair.compare()
    assert b"no memory" in bytes(pair.sides[1].transport.written) and not pair.failed()


def test_a_cancelled_call_receives_no_more(pair: Pair) -> None:
    data = call(101, message(100_000), BLOCK)
    pair.receive(data[:50_000])
    for side in pair.sides:
        stream = side.connection._streams[101]
        assert isinstance(stream.receiver, UnaryCall)
        stream.receiver.end(8, "enough")
        side.loop.run_ready()
    pair.receive(data[50_000:] + call(103, message(100_000), BLOCK))
    pair.compare()
    assert not pair.failed()


@pytest.mark.parametrize("size", [16384, 100_000, 1_000_000])
def test_long_responses_are_the_same(pair: Pair, size: int) -> None:
    for number in (101, 103):
        pair.receive(call(number, message(size), BLOCK))
    while pair.sides[1].service.waiting:
        pair.answer()
        pair.compare()
    assert len(pair.sides[1].transport.written) > 2 * size


def test_any_pieces_of_calls_have_the_same_effects() -> None:
    chance = random.Random(7)
    for _ in range(30):
        pair = Pair()
        pair.receive(OPENED + call(99, message(16384), BLOCK))
        data = b"".join(
            call(
                number,
                message(chance.choice((8, 9000, 20_000, 90_000))),
                chance.choice(BLOCKS[:4]),
                chance.choice((1 << 20, 16384, 3000)),
            )
            for number in range(101, 111, 2)
        )
        while data:
            size = chance.choice((3, 100, 16_384, 70_000))
            pair.receive(data[:size])
            data = data[size:]
            if chance.randrange(3) == 0:
                pair.answer()
            pair.compare()
        pair.close()


def blocks_left(plane: str) -> int:
    """Return how many more blocks are allocated after many long calls."""
    side = Side(plane)
    side.receive(GREETING + OPENED + call(1, message(16384), BLOCK))

    def run(count: int) -> None:
        for _ in range(count):
            number = side.connection._last_stream + 2
            second = call(number + 2, message(40_000), BLOCK)
            side.receive(call(number, message(40_000), BLOCK) + second[:9000])
            side.receive(second[9000:])
            side.answer()
            side.answer()
            side.service.requests.clear()
            side.transport.written.clear()
            side.loop.timers.clear()

    run(20)
    gc.collect()
    blocks = sys.getallocatedblocks()
    run(100)
    gc.collect()
    return sys.getallocatedblocks() - blocks


def test_nothing_is_left_behind() -> None:
    gc.disable()
    try:
        assert blocks_left("native") < blocks_left("python") + 100
    finally:
        gc.enable()
