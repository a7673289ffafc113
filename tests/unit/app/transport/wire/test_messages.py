"""Requests and responses as frames, and metas that lie."""

import array
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor, Timestamps, TracedCall
from app.transport.memory.arena import ArenaReader, ArenaWriter
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.compiled import compiled_messages
from app.transport.wire.control_messages import (
    decode_control,
    decode_failure,
    decode_release,
    decode_value,
    encode_control,
    encode_failure,
)
from app.transport.wire.frames import Frame, FrameDecoder, Kind
from app.transport.wire.messages import (
    FrameEncoder,
    decode_request,
    decode_response,
)
from app.transport.wire.tensors import IN_META, MAX_TENSORS

pytestmark = pytest.mark.usefixtures("data_plane")

SETTINGS = TransportSettings()
pack = msgspec.msgpack.encode


def received(queue: list[Any]) -> Frame:
    """Pass a queue through a decoder that has room for it."""
    data = b"".join(queue)
    decoder = FrameDecoder(1 << 30, 1 << 24, len(data) + 64)
    decoder.get_buffer()[: len(data)] = data
    (frame,) = decoder.received(len(data))
    return frame


def frame_of(meta: bytes, payload: bytes = b"", kind: Kind = Kind.INFER) -> Frame:
    return Frame(kind, 0, 1, 0, memoryview(meta), memoryview(payload), False)


def read_request(frame: Frame, deadline: float, arena: ArenaReader | None) -> InferRequest:
    return decode_request(frame, deadline, arena, None, compiled_messages(SETTINGS))


def read_response(frame: Frame, arena: ArenaReader | None) -> InferResponse:
    return decode_response(frame, arena, None, compiled_messages(SETTINGS))


def plain(tensors: tuple[Tensor, ...]) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    return [(t.name, t.datatype, t.shape, bytes(t.data)) for t in tensors]


datas = st.one_of(
    st.binary(max_size=80),
    st.integers(IN_META - 1, IN_META + 200).map(lambda n: bytes(range(256)) * (n // 256) + bytes(n % 256)),
)
wraps: st.SearchStrategy[Callable[[bytes], Any]] = st.sampled_from([bytes, bytearray, memoryview])
tensors = st.builds(
    lambda name, datatype, shape, data, wrap: Tensor(name, datatype, shape, wrap(data)),
    st.text(max_size=10),
    st.sampled_from(["FP32", "BYTES", "weird"]),
    st.lists(st.integers(-1, 2**40), max_size=4).map(tuple),
    datas,
    wraps,
)
parameters = st.dictionaries(
    st.text(max_size=5),
    st.one_of(
        st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=5)
    ),
    max_size=3,
)
u64 = st.integers(0, 2**64 - 1)
requests = st.builds(
    InferRequest,
    st.text(max_size=8),
    st.text(max_size=3),
    st.lists(tensors, max_size=4).map(tuple),
    st.lists(st.text(max_size=5).map(RequestedOutput), max_size=3).map(tuple),
    st.text(max_size=8),
    parameters,
    st.one_of(u64, st.text(min_size=1, max_size=5)),  # an empty one is none, as 0 is
    st.booleans(),
    st.booleans(),
    u64,
    u64,
    st.sampled_from(["", "-", "00-ab-cd-01"]),
    st.booleans(),
    st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@given(requests)
def test_requests_round_trip(request: InferRequest) -> None:
    queue: list[Any] = []
    size = FrameEncoder(SETTINGS, None).request(queue, 7, request, 1500)
    assert size == sum(len(piece) for piece in queue)
    frame = received(queue)
    result = read_request(frame, 12.5, None)
    assert (frame.kind, frame.stream, frame.deadline_us, result.deadline) == (Kind.INFER, 7, 1500, 12.5)
    assert plain(result.inputs) == plain(request.inputs)
    sent = msgspec.structs.replace(request, inputs=result.inputs, deadline=12.5)
    assert result == sent


@given(
    st.lists(tensors, max_size=4).map(tuple),
    st.booleans(),
    parameters,
    st.booleans(),
    st.sampled_from([None, Timestamps(1, 2, 3, 4, 5, 6, 1 << 62, (("é_START", 7),))]),
)
def test_responses_round_trip(
    outputs: tuple[Tensor, ...],
    final: bool,
    values: dict[str, Any],
    wrong: bool,
    timestamps: Timestamps | None,
) -> None:
    failure = Failure(ErrorCode.NOT_FOUND, "é", FailureReason.REJECTED) if wrong else None
    queue: list[Any] = []
    inner = TracedCall("inner", "1", "", Timestamps(2), (), (Tensor("I", "INT8", (2,), b"ab"),))
    calls = (TracedCall("called", "", "c", timestamps, (inner,)), inner) if timestamps else ()
    response = InferResponse("m", "2", outputs, "id", values, final, failure, timestamps, calls)
    FrameEncoder(SETTINGS, None).response(queue, 9, response)
    result = read_response(received(queue), None)
    assert plain(result.outputs) == plain(outputs)
    assert (result.model_name, result.model_version, result.id) == ("m", "2", "id")
    assert (result.parameters, result.final, result.timestamps) == (values, final, timestamps)
    assert result.calls == calls
    assert result.failure == failure


def test_golden_request() -> None:
    request = InferRequest("m", "", (Tensor("I", "FP32", (1, 1), b"\0\0\x80?"),), (RequestedOutput("O"),))
    queue: list[Any] = []
    FrameEncoder(SETTINGS, None).request(queue, 1, request, 0)
    assert b"".join(queue).hex() == (
        "010000001a000000" "0000000000000000" "0100000000000000" "0000000000000000"
        "95" "a16d" "a0" "91" "94a149a446503332920101c4040000803f" "91a14f" "a0"
    )  # fmt: skip


def test_payload_tensors_lie_at_multiples_of_64_of_the_frame() -> None:
    big = b"x" * (IN_META + 1)
    queue: list[Any] = []
    FrameEncoder(SETTINGS, None).request(
        queue, 1, InferRequest("m", "", (Tensor("A", "UINT8", (1,), big), Tensor("B", "UINT8", (1,), big))), 0
    )
    data = b"".join(queue)
    first = data.index(big)
    second = data.index(big, first + len(big))
    assert first % 64 == 0
    assert second % 64 == 0


def test_many_small_tensors_do_not_fill_the_meta() -> None:
    queue: list[Any] = []
    sent = tuple(Tensor(str(n), "UINT8", (n,), bytes([n]) * n) for n in (0, *[100] * 20, 0, 50))
    settings = TransportSettings(max_meta_bytes=1000)
    FrameEncoder(settings, None).request(queue, 1, InferRequest("m", "", sent), 0)
    frame = received(queue)
    assert len(frame.meta) < 1000 and plain(read_request(frame, 0.0, None).inputs) == plain(sent)


def test_small_tensors_of_a_large_frame_keep_nothing_alive() -> None:
    queue: list[Any] = []
    sent = tuple(Tensor(str(n), "UINT8", (n,), bytes(n)) for n in (IN_META + 1, 1_000_000))
    FrameEncoder(SETTINGS, None).request(queue, 1, InferRequest("m", "", sent), 0)
    frame = received(queue)
    owned = Frame(frame.kind, 0, 1, 0, frame.meta, frame.payload, True)
    small, large = read_request(owned, 0.0, None).inputs
    assert type(small.data) is bytes
    assert type(large.data) is memoryview


def test_arena_round_trip_and_release() -> None:
    writer = ArenaWriter(1 << 20)
    released: list[int] = []
    reader = ArenaReader(writer.fd, writer.nbytes, released.append)
    data = bytes(range(256)) * 256
    queue: list[Any] = []
    FrameEncoder(SETTINGS, writer).response(
        queue, 1, InferResponse("m", "1", (Tensor("O", "UINT8", (65536,), data),))
    )
    assert sum(len(piece) for piece in queue) < 200
    result = read_response(received(queue), reader)
    assert bytes(result.outputs[0].data) == data
    assert released == []
    del result
    assert released == [0]
    writer.close()


def test_unencodable_values_are_refused_and_release_their_slab() -> None:
    writer = ArenaWriter(1 << 20)
    encoder = FrameEncoder(SETTINGS, writer)
    large = Tensor("I", "UINT8", (65536,), bytes(65536))
    queue: list[Any] = []
    for value in (2**64, object(), "\ud800"):
        with pytest.raises(InferError) as caught:
            encoder.request(queue, 1, InferRequest("m", "", (large,), (), "", {"p": value}), 0)  # type: ignore[dict-item]
        assert caught.value.code == ErrorCode.INVALID_ARG
        with pytest.raises(InferError) as caught:
            encoder.response(queue, 1, InferResponse("m", "", (large,), "", {"p": value}))  # type: ignore[dict-item]
        assert caught.value.code == ErrorCode.INTERNAL
    assert queue == []
    assert writer.live == 0
    writer.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (InferRequest("m" * 200, "", ()), "more than 100"),
        (InferRequest("m", "", (), tuple([RequestedOutput("")] * (MAX_TENSORS + 1))), "more than"),
        (InferRequest("m", "", tuple([Tensor("", "", (), b"")] * (MAX_TENSORS + 1))), "16386 tensors"),
        (InferRequest("m", "", (Tensor("I", "UINT8", (), bytes(20_000)),)), "20000 bytes of tensors"),
        (InferRequest("m", "", (), (), "", {"p": [1]}), "parameter 'p'"),  # type: ignore[dict-item]
        (InferRequest("m", "", (Tensor("I", "UINT8", (), None),)), "NoneType"),
        (InferRequest("m", "", (Tensor("I", "UINT8", (), memoryview(bytes(9999))[::2]),)), "C-contiguous"),
    ],
)
def test_messages_beyond_the_limits_are_not_sent(request_: InferRequest, message: str) -> None:
    large = Tensor("L", "UINT8", (70_000,), bytes(70_000))
    writer = ArenaWriter(1 << 20)
    encoder = FrameEncoder(TransportSettings(max_meta_bytes=100, max_frame_bytes=10_100), writer)
    queue: list[Any] = []
    with pytest.raises(InferError, match=message):
        encoder.request(queue, 1, msgspec.structs.replace(request_, inputs=(large, *request_.inputs)), 0)
    with pytest.raises(InferError, match="more than 100"):
        encoder.response(queue, 1, InferResponse("m", "", (large,), "i" * 200))
    assert queue == []
    assert writer.live == 0
    writer.close()


def test_typed_memoryviews_are_sent_as_bytes() -> None:
    values = array.array("f", range(50_000))
    queue: list[Any] = []
    FrameEncoder(SETTINGS, None).request(
        queue, 1, InferRequest("m", "", (Tensor("I", "FP32", (50_000,), memoryview(values)),)), 0
    )
    assert b"".join(queue).endswith(values.tobytes())
    assert all(len(piece) == memoryview(piece).nbytes for piece in queue)


def tensor(data: Any) -> bytes:
    return pack(("m", "", [("I", "FP32", [1], data)]))


@pytest.mark.parametrize(
    ("meta", "payload"),
    [
        (b"", b""),
        (b"\xc1", b""),
        (pack({}), b""),
        (pack(("m",)), b""),
        (pack((1, "", [])), b""),
        (pack(("m", "", [], [1])), b""),
        (pack(("m", "", [], [], "", {"p": {"nested": 1}})), b""),
        (pack(("m", "", [], [], "", {}, -1.5)), b""),
        (b"\x93\xa1m\xa0\xdd\xff\xff\xff\xff", b""),
        (b"\x93\xa1m\xa0\xdb\xff\xff\xff\xff", b""),
        (b"\x91" * 100_000, b""),
        (tensor("text"), b""),
        (tensor(None), b""),
        (tensor([1, 2, 3]), b""),
        (tensor([0, 64]), b""),
        (tensor(4), b""),
        (tensor(0), b""),
        (tensor(-4), b"1234"),
        (tensor(5), b"1234"),
        (tensor(3), b"1234"),
        (tensor(2**64 - 1), b"1234"),
        (tensor(b"here"), b"1234"),
        (pack(("m", "", [("I", "FP32", [1], 4), ("J", "FP32", [1], 4)])), b"12345678"),
        (b"\x95\xa1m\xa0\x90\x90\xa1\xff", b""),
    ],
)
def test_malformed_requests_are_protocol_errors(meta: bytes, payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_request(frame_of(meta, payload), 0.0, None)


@given(st.binary(max_size=200), st.binary(max_size=20))
def test_any_meta_is_a_message_or_a_protocol_error(meta: bytes, payload: bytes) -> None:
    frame = frame_of(meta, payload)
    for decode in (
        lambda: read_request(frame, 0.0, None),
        lambda: read_response(frame, None),
        lambda: decode_release(frame),
        lambda: decode_control(frame),
        lambda: decode_failure(frame),
        lambda: decode_value(frame),
    ):
        try:
            decode()
        except ProtocolError:
            pass


def test_unknown_error_codes_are_protocol_errors() -> None:
    with pytest.raises(ProtocolError):
        read_response(frame_of(pack(("m", "", [], "", {}, ("TEAPOT", "", "OTHER")))), None)


def test_control_and_failures_round_trip() -> None:
    assert decode_control(frame_of(encode_control("STATS", [1, {"a": b"x"}]))) == ("STATS", [1, {"a": b"x"}])
    failure = Failure(ErrorCode.CANCELLED, "", FailureReason.CANCELED)
    assert decode_failure(frame_of(encode_failure(failure))) == failure
