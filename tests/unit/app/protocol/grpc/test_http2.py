"""HTTP/2 frames and header blocks, and what gRPC puts into them."""

import gzip
import tracemalloc
import zlib
from typing import Any, cast
from urllib.parse import unquote

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.tensors import Buffer
from app.protocol.grpc import framing as wire
from app.protocol.grpc import http2 as h2
from app.protocol.grpc.header_blocks import HeaderReader, Pairs
from tests.costs import bounded

LIMIT = 1 << 16


def _decoded(block: bytes) -> Any:
    return hpack.Decoder().decode(block)


def feed(reader: h2.FrameReader, data: bytes, step: int) -> list[Any]:
    return [frame for i in range(0, len(data), step) for frame in reader.feed(data[i : i + step])]


@pytest.mark.parametrize("step", [1, 7, 8, 9, 10, 64, 10_000])
def test_frames_arrive_in_pieces_of_any_size(step: int) -> None:
    sent = [
        (h2.SETTINGS, 0, 0, b""),
        (h2.HEADERS, h2.END_HEADERS, 1, b"block"),
        (h2.DATA, 0, 1, bytes(range(256)) * 8),
        (h2.DATA, h2.END_STREAM | h2.PADDED, 1, b"\x03abc\0\0\0"),
        (h2.PING, 0, 0, b"12345678"),
        (h2.DATA, h2.END_STREAM, 3, b""),
    ]
    frames = feed(h2.FrameReader(LIMIT), b"".join(h2.frame(*each) for each in sent), step)
    data = b"".join(f.payload for f in frames if f.kind == h2.DATA and f.stream == 1 and not f.flags)
    assert data == sent[2][3]
    whole = [tuple(f) for f in frames if not (f.kind == h2.DATA and f.stream == 1 and not f.flags)]
    assert whole == [each for each in sent if each is not sent[2]]


def test_last_piece_of_a_long_data_frame_ends_the_stream() -> None:
    reader = h2.FrameReader(LIMIT)
    data = h2.frame(h2.DATA, h2.END_STREAM, 5, bytes(1000))
    assert list(reader.feed(data[:500])) == [(h2.DATA, 0, 5, bytes(491))]
    frames = list(reader.feed(data[500:] + h2.frame(h2.PING, 0, 0, bytes(8))))
    assert frames[0][1] == h2.END_STREAM


@pytest.mark.parametrize("step", [1, 8, 9, 10, 100, 163, 1000, 10_000])
def test_long_data_frames_are_read_as_segments(step: int) -> None:
    one, other = bytes(range(250)) * 4, bytes(range(100)) * 2
    sent = [
        (h2.DATA, 0, 1, one[:500]),
        (h2.DATA, 0, 1, one[500:]),
        (h2.DATA, 0, 3, other),
        (h2.DATA, h2.END_STREAM, 3, other),
        (h2.PING, 0, 0, b"12345678"),
        (h2.DATA, h2.END_STREAM | h2.PADDED, 1, b"\x00" + bytes(200)),
        (h2.DATA, 0, 5, b"short"),
        (h2.DATA, h2.END_STREAM, 5, one),
    ]
    reader = h2.FrameReader(LIMIT, long=100)
    data = b"".join(h2.frame(*each) for each in sent)
    found: dict[int, bytes] = {}
    ended: list[int] = []
    runs = 0
    for start in range(0, len(data), step):
        for frame in reader.feed(memoryview(data)[start : start + step]):
            assert frame.stream not in ended
            payload = frame.payload if isinstance(frame, h2.Frame) else b"".join(frame.payload)
            found[frame.stream] = found.get(frame.stream, b"") + payload
            runs += isinstance(frame, h2.DataSegments)
            ended += [frame.stream] if frame.flags & h2.END_STREAM else []
    assert found == {1: one + b"\x00" + bytes(200), 3: other * 2, 0: b"12345678", 5: b"short" + one}
    assert ended == [3, 1, 5]
    assert runs >= 3


def test_segments_stop_at_a_frame_over_the_limit() -> None:
    reader = h2.FrameReader(1000, long=100)
    data = h2.frame(h2.DATA, 0, 1, bytes(200)) + h2.frame_head(1001, h2.DATA, 0, 1) + b"x"
    frames = reader.feed(data)
    assert next(frames).stream == 1, "what is in front of it is handled"
    with pytest.raises(h2.Http2Error):
        next(frames)


def test_long_frame_arriving_byte_by_byte_is_not_copied_each_time() -> None:
    reader = h2.FrameReader(1 << 20)
    data = h2.frame(h2.HEADERS, h2.END_HEADERS, 1, bytes(1 << 20))
    with bounded(0.5):  # 50,000 copies of it are 25 GB
        frames = list(reader.feed(data[: 1 << 19]))
        for at in range(1 << 19, (1 << 19) + 50_000):
            frames += reader.feed(data[at : at + 1])
    assert not frames
    assert list(reader.feed(data[at + 1 :])) == [(h2.HEADERS, h2.END_HEADERS, 1, data[9:])]


def test_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(h2.Http2Error) as caught:
        list(h2.FrameReader(LIMIT).feed(h2.frame_head(LIMIT + 1, h2.DATA, 0, 1)))
    assert caught.value.code == h2.FRAME_SIZE_ERROR


@pytest.mark.parametrize("step", [1, 999, 70_000, 1_000_000])
def test_long_messages_use_the_allocator(step: int) -> None:
    made: list[memoryview] = []

    def allocate(size: int, beginning: Any) -> memoryview:
        made.append(memoryview(bytearray(size)))
        return made[-1]

    sent = [bytes(range(250)) * 400, b"short", bytes(range(100)) * 1000]
    data = memoryview(b"".join(wire.PREFIX.pack(0, len(each)) + each for each in sent))
    reader = wire.MessageReader("identity", 1 << 20, allocate)
    found = []
    buffer = bytearray(step)
    for start in range(0, len(data), step):
        size = len(data[start : start + step])
        buffer[:size] = data[start : start + size]
        view = memoryview(buffer)[:size]
        found += [
            bytes(cast(Buffer, each)) for each in reader.feed_segments((view[: size // 2], view[size // 2 :]))
        ]
        buffer[:] = bytes(step)  # nothing is kept of what was received
    assert found == sent and not reader.partial
    assert [bytes(each) for each in made] == [sent[0], sent[2]]


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_fuzz_the_frame_reader(pieces: list[bytes]) -> None:
    reader = h2.FrameReader(1024)
    total = 0
    try:
        for piece in pieces:
            total += sum(len(frame.payload) for frame in reader.feed(piece))
    except h2.Http2Error:
        pass
    assert total <= sum(map(len, pieces))


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"12345", h2.FRAME_SIZE_ERROR),
        (b"\0\4\x80\0\0\0", h2.FLOW_CONTROL_ERROR),
        (b"\0\5\0\0\0\1", h2.PROTOCOL_ERROR),
    ],
)
def test_invalid_settings_are_refused(payload: bytes, code: int) -> None:
    with pytest.raises(h2.Http2Error) as caught:
        h2.read_settings(payload)
    assert caught.value.code == code


def test_padding_and_priority() -> None:
    assert h2.unpad(0, b"abc") == b"abc"
    assert h2.unpad(h2.PADDED, b"\x02abc\0\0") == b"abc"
    assert h2.unpad(h2.PADDED | h2.PRIORITISED, b"\x01\0\0\0\0\0abc\0") == b"abc"
    for payload in (b"", b"\x05ab"):
        with pytest.raises(h2.Http2Error):
            h2.unpad(h2.PADDED, payload)


CALL = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "localhost:8001"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
    ("user-agent", "grpc-python/1.80"),
    ("x-own", "1"),
]


def test_repeated_header_block_is_decoded_once() -> None:
    made: list[wire.CallHead] = []

    def make(pairs: Pairs) -> wire.CallHead:
        made.append(wire.read_head(pairs))
        return made[-1]

    encoder, reader = hpack.Encoder(), HeaderReader(make, LIMIT)
    blocks = [encoder.encode(CALL) for _ in range(5)]
    heads = [reader.read(block) for block in blocks]
    assert len(made) == 2  # the first fills the table, the second is kept
    assert all(head == heads[0] for head in heads)
    other = reader.read(encoder.encode([*CALL[:-1], ("x-own", "2")]))  # changes the table
    assert other.metadata[-1] == ("x-own", "2")
    assert reader.read(encoder.encode(CALL)).metadata[-1] == ("x-own", "1")


@given(st.binary(max_size=200))
def test_fuzz_the_header_reader(block: bytes) -> None:
    reader = HeaderReader(wire.read_head, 4096)
    try:
        reader.read(block)
    except h2.Http2Error as error:
        assert error.code in (h2.COMPRESSION_ERROR, h2.ENHANCE_YOUR_CALM)


def test_header_list_over_the_limit_is_refused() -> None:
    encoder, reader = hpack.Encoder(), HeaderReader(wire.read_head, 4096)
    reader.read(encoder.encode([("a", "x" * 3000)]))
    with pytest.raises(h2.Http2Error) as caught:
        reader.read(encoder.encode([("a", "x" * 3000)] * 2))  # four bytes on the wire
    assert caught.value.code == h2.ENHANCE_YOUR_CALM


def test_call_head_is_parsed() -> None:
    head = wire.read_head([*CALL, ("grpc-timeout", "250m"), ("grpc-encoding", "gzip")])
    assert (head.path, head.timeout_s, head.encoding) == (CALL[2][1], 0.25, "gzip")
    assert head.accepts_gzip and not head.refusal
    assert dict(head.metadata).keys() == {"content-type", "te", "user-agent", "x-own"}
    assert wire.read_head([(":method", "GET")]).refusal == 405
    assert wire.read_head([(":method", "POST"), ("content-type", "text/html")]).refusal == 415


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1S", 1.0), ("2M", 120.0), ("1H", 3600.0), ("5u", 5e-6), ("7n", 7e-9), ("", None), ("1", None),
     ("1x", None), ("-1S", None), ("123456789S", None)],
)  # fmt: skip
def test_timeouts(text: str, seconds: float | None) -> None:
    assert wire.read_timeout(text) == pytest.approx(seconds)


def test_client_decodes_response_blocks() -> None:
    assert _decoded(wire.RESPONSE_HEADERS) == [(":status", "200"), ("content-type", "application/grpc")]
    assert _decoded(wire.trailers(0)) == [("grpc-status", "0")]
    text = "größe 100% \n" + "x" * 300
    found = dict(_decoded(wire.trailers(3, text)))
    assert found["grpc-message"] == "gr%C3%B6%C3%9Fe 100%25 %0A" + "x" * 300


@pytest.mark.parametrize(
    "text", ["x" * 16_000, "\U0001f600" * 16_000, "x" * 8000 + "\U0001f600" * 8000, "\ud800" * 9000]
)
def test_status_message_fits_the_trailers_that_clients_accept(text: str) -> None:
    message = dict(_decoded(wire.trailers(3, text)))["grpc-message"]
    assert 2000 < len(message) <= 7000 and "..." in message
    assert unquote(message, errors="strict")
    assert _decoded(wire.refusal_headers(415)) == [(":status", "415")]


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return wire.PREFIX.pack(flag, len(message)) + message


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_messages_arrive_in_pieces_of_any_size(messages: list[bytes], step: int) -> None:
    reader = wire.MessageReader("identity", 100)
    data = b"".join(map(prefixed, messages))
    found = [message for i in range(0, len(data), step) for message in reader.feed(data[i : i + step])]
    assert found == messages and not reader.partial


@pytest.mark.parametrize(
    ("encoding", "packed"), [("gzip", gzip.compress(b"abc", mtime=0)), ("deflate", zlib.compress(b"abc"))]
)
def test_compressed_messages(encoding: str, packed: bytes) -> None:
    for step in (1, 100):
        reader = wire.MessageReader(encoding, 100)
        data = prefixed(packed, 1) + prefixed(b"plain")
        found = [each for i in range(0, len(data), step) for each in reader.feed(data[i : i + step])]
        assert isinstance(found[0], wire.Compressed)
        assert [found[0].decompress(100), *found[1:]] == [b"abc", b"plain"]


def test_invalid_messages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"larger than max \(101 vs. 100\)"):
        wire.MessageReader("identity", 100).feed(wire.PREFIX.pack(0, 101))
    with pytest.raises(MemoryError, match="more than 1000 bytes"):
        wire.Compressed("gzip", gzip.compress(bytes(100_000))).decompress(1000)
    with pytest.raises(ValueError, match="cut short"):
        wire.Compressed("gzip", gzip.compress(bytes(1000))[:-1]).decompress(1000)
    with pytest.raises(ValueError, match="incorrect header"):
        wire.Compressed("gzip", b"abc").decompress(1000)
    with pytest.raises(LookupError, match="br"):
        wire.MessageReader("br", 1000).feed(prefixed(b"abc", 1))
    with pytest.raises(ValueError, match="flag 2"):
        wire.MessageReader("identity", 1000).feed(prefixed(b"abc", 2))
    reader = wire.MessageReader("identity", 100)
    assert reader.feed(b"\0\0\0") == [] and reader.partial


def test_only_short_header_blocks_are_cached() -> None:
    reader = HeaderReader(wire.read_head, 1 << 16)
    for size, kept in ((1000, True), (30_000, False)):
        block = b"".join(wire.header(name, value) for name, value in ((":path", "/a"), ("x", "y" * size)))
        assert (reader.read(block) is reader.read(block)) is kept


def test_message_in_small_pieces_uses_no_more_memory_than_its_size() -> None:
    """As a list of pieces it would use twenty times as much."""
    reader = wire.MessageReader("identity", 1 << 30)
    reader.feed(wire.PREFIX.pack(0, 200_002))
    tracemalloc.start()
    for number in range(100_000):
        assert not reader.feed(number.to_bytes(3)[1:])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000
    expected = b"".join(number.to_bytes(3)[1:] for number in range(100_000))
    assert reader.feed(b"ab\0\0") == [expected + b"ab"] and reader.partial
