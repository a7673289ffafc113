"""The codec: golden bytes, any chunking, and bytes that lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.transport.protocol import ProtocolError
from app.transport.wire.frames import (
    HEADER,
    HEADER_SIZE,
    FrameDecoder,
    Kind,
    aligned_buffer,
    encode_frame,
    padded,
)

BUFFER = 1024


def decoder(max_frame: int = 1 << 20, max_meta: int = 1 << 16, buffer: int = BUFFER) -> FrameDecoder:
    return FrameDecoder(max_frame, max_meta, buffer)


def feed(
    target: FrameDecoder, data: bytes, sizes: list[int] | None = None
) -> list[tuple[int, int, bytes, bytes]]:
    """Receive `data` in pieces of the given sizes, again and again."""
    frames = []
    turn = 0
    while data:
        room = target.get_buffer()
        assert len(room) > 0
        size = min(len(room), len(data), sizes[turn % len(sizes)] if sizes else len(data))
        room[:size] = data[:size]
        frames += [(f.kind, f.stream, bytes(f.meta), bytes(f.payload)) for f in target.received(size)]
        data, turn = data[size:], turn + 1
    return frames


def raw(kind: int, stream: int, meta: bytes, payload: bytes = b"") -> bytes:
    head = HEADER.pack(kind, 0, 0, len(meta), len(payload), stream, 0) + meta
    return head + bytes(padded(len(head)) - len(head)) + payload if payload else head


def test_golden_frames() -> None:
    assert HEADER_SIZE == 32
    assert encode_frame(Kind.DRAIN) == b"\x07" + bytes(31)
    assert encode_frame(Kind.CANCEL, 258) == b"\x03" + bytes(15) + b"\x02\x01" + bytes(14)
    assert encode_frame(Kind.CONTROL_REPLY, 1, b"\xc0", 2) == bytes.fromhex(
        "0602000001000000000000000000000001000000000000000000000000000000c0"
    )


frames = st.lists(
    st.tuples(
        st.integers(1, 7),
        st.integers(0, 2**64 - 1),
        st.one_of(st.binary(max_size=100), st.binary(min_size=900, max_size=1200)),
        st.one_of(st.just(b""), st.binary(max_size=70), st.binary(min_size=900, max_size=3000)),
    ),
    max_size=8,
)


@given(frames, st.lists(st.integers(1, 2000), min_size=1, max_size=6))
def test_round_trip_in_any_chunking(sent: list[tuple[int, int, bytes, bytes]], sizes: list[int]) -> None:
    assert feed(decoder(), b"".join(raw(*frame) for frame in sent), sizes) == sent


def test_large_payload_has_memory_of_its_own() -> None:
    target = decoder()
    payloads = []
    data = raw(1, 1, b"m" * 10, b"x" * 5000) + raw(1, 2, b"n" * 10, b"y" * 5000)
    while data:
        room = target.get_buffer()
        size = min(len(room), len(data))
        room[:size] = data[:size]
        payloads += [frame.payload for frame in target.received(size) if frame.owned]
        data = data[size:]
    assert [bytes(payload) for payload in payloads] == [b"x" * 5000, b"y" * 5000]


def test_aligned_buffer_is_aligned() -> None:
    import numpy as np

    assert all(np.frombuffer(aligned_buffer(n), np.uint8).ctypes.data % 64 == 0 for n in (1, 63, 64, 100_000))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (HEADER.pack(0, 0, 0, 0, 0, 0, 0), "not a frame"),
        (HEADER.pack(13, 0, 0, 0, 0, 0, 0), "not a frame"),
        (HEADER.pack(1, 0, 1, 0, 0, 0, 0), "not a frame"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "exceeds the maximum"),
        (HEADER.pack(1, 0, 0, 2**32 - 1, 0, 0, 0), "meta of 4294967295"),
        (HEADER.pack(1, 0, 0, (1 << 16) + 1, 0, 0, 0), "meta of 65537"),
        (HEADER.pack(1, 0, 0, 0, 2**64 - 1, 0, 0), "exceeds the maximum"),
        (HEADER.pack(1, 0, 0, 0, 1 << 20, 0, 0), "exceeds the maximum"),
    ],
)
def test_malformed_headers_are_refused_at_once(header: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        feed(decoder(), header[:32])


def test_frame_within_the_buffer_is_limited_too() -> None:
    with pytest.raises(ProtocolError, match="frame of 132 bytes"):
        feed(decoder(max_frame=100), raw(1, 1, b"m" * 100))


def test_truncated_frame_yields_nothing() -> None:
    whole = raw(1, 1, b"meta", b"p" * 5000)
    assert feed(decoder(), whole[:-1]) == []


@given(st.binary(max_size=4000), st.lists(st.integers(1, 500), min_size=1, max_size=4))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes, sizes: list[int]) -> None:
    try:
        feed(decoder(), data, sizes)
    except ProtocolError:
        pass
