"""Messages of gRPC read in C: the same as by protobuf, in any order of fields and with any flaw."""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import InferError
from app.core.tensors import InferRequest, RegionSlice
from app.native.choice import missing
from app.protocol.grpc.request_message import decode_request
from tests.unit.app.ingress.http2.planes import Side

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
Read = Callable[..., Any]


@pytest.fixture(scope="module")
def read() -> Read:
    """Return the whole reader."""
    return compiled().read  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def read_in_c() -> Read:
    """Return the reader with None for what is left to Python."""
    with patch("app.ingress.http2.compiled.decode_request", lambda data, deadline: None):
        return compiled().read  # type: ignore[no-any-return]


def compiled() -> Any:
    side = Side("native")
    side.close()
    return side.state.compiled


def number(value: int) -> pb.InferParameter:
    return pb.InferParameter(int64_param=value)


def message(raw: tuple[bytes, ...] = (b"1234",), **fields: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for i, piece in enumerate(raw):
        made.inputs.add(name=f"I{i}", datatype="UINT8", shape=[len(piece)])
    return made


def placed(tensor: Any, region: str = "r", **more: pb.InferParameter) -> None:
    given = {"byte_size": number(4), **more}
    tensor.parameters["shared_memory_region"].string_param = region
    for name, value in given.items():
        tensor.parameters[f"shared_memory_{name}"].CopyFrom(value)


def outcome(read: Read, data: Any) -> object:
    """Return a request with its data as bytes and its parameters as text, for NaN; or its error."""
    try:
        request = read(data, 2.5)
    except InferError as error:
        return error.code, error.message
    inputs = [(t.name, t.datatype, t.shape, of_tensor(t.data)) for t in request.inputs]
    others = {name: getattr(request, name) for name in request.__struct_fields__ if name != "inputs"}
    parameters = {name: repr(value) for name, value in others.pop("parameters").items()}
    return inputs, others, parameters, [type(value) for value in others.values()]


def of_tensor(data: Any) -> Any:
    return data if isinstance(data, RegionSlice) else bytes(data)


texts = st.text(max_size=8) | st.sampled_from(["", "é" * 100, "s" * 128, "s" * 129])
int64s = st.sampled_from([0, 1, -1, 300, -(1 << 63), (1 << 63) - 1])
values = st.one_of(
    st.builds(pb.InferParameter, int64_param=int64s),
    st.builds(pb.InferParameter, bool_param=st.booleans()),
    st.builds(pb.InferParameter, string_param=texts),
    st.builds(pb.InferParameter, double_param=st.floats()),
    st.builds(pb.InferParameter, uint64_param=st.sampled_from([0, 5, (1 << 64) - 1])),
    st.builds(pb.InferParameter),
)
keys = st.sampled_from(
    [
        *("priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "a", "é", ""),
        *("triton_", "triton_enable_empty_final_response", "triton", "sequence_ids"),
    ]
)
placing = st.dictionaries(
    st.sampled_from(
        [
            *("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"),
            "classification",
            "other",
        ]
    ),
    values,
    max_size=3,
)
shapes = st.lists(st.sampled_from([0, 1, 16, 128, 300, -1, (1 << 63) - 1]), max_size=5) | st.just([1] * 70)
contents: st.SearchStrategy[Any] = (
    st.none() | st.just({"int_contents": [1, 2]}) | st.just({"fp32_contents": [1.0]}) | st.just({})
)
tensors = st.tuples(
    texts, st.sampled_from(["FP32", "INT32", "BYTES", ""]), shapes, placing | st.just({}), contents
)


def built(parts: Any) -> pb.ModelInferRequest:
    model, version, identifier, parameters, inputs, outputs, raw = parts
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=identifier)
    made.raw_input_contents.extend(raw)
    for name, value in parameters.items():
        made.parameters[name].CopyFrom(value)
    for name, datatype, shape, places, typed in inputs:
        tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
        for key, value in places.items():
            tensor.parameters[key].CopyFrom(value)
        if typed is not None:
            tensor.contents.CopyFrom(pb.InferTensorContents(**typed))
    for name, places in outputs:
        output = made.outputs.add(name=name)
        for key, value in places.items():
            output.parameters[key].CopyFrom(value)
    return made


messages = st.tuples(
    *(texts, texts, texts, st.dictionaries(keys, values, max_size=3), st.lists(tensors, max_size=3)),
    st.lists(st.tuples(texts, placing | st.just({})), max_size=3),
    st.lists(st.binary(max_size=40) | st.integers(4090, 5000).map(bytes), max_size=4),
).map(built)


def fields(data: bytes) -> list[bytes]:
    """Return the fields of a message, all of which are delimited."""
    found, at = [], 0
    while at < len(data):
        size, end, shift = 0, at + 1, 0
        while True:
            size |= (data[end] & 0x7F) << shift
            shift += 7
            end += 1
            if data[end - 1] < 0x80:
                break
        found.append(data[at : end + size])
        at = end + size
    return found


@settings(deadline=None, max_examples=200)
@given(messages, st.randoms())
def test_messages_are_read_as_by_protobuf(read: Read, sent: pb.ModelInferRequest, chance: Any) -> None:
    """In any order of their fields."""
    parts = fields(sent.SerializeToString())
    for _ in range(2):
        data = b"".join(parts)
        assert outcome(read, data) == outcome(decode_request, data)
        chance.shuffle(parts)


@settings(deadline=None, max_examples=300)
@given(
    messages,
    st.lists(
        st.tuples(st.integers(0, 300), st.integers(0, 4), st.binary(max_size=3)), min_size=1, max_size=3
    ),
)
def test_flaws_are_those_of_protobuf(read: Read, sent: pb.ModelInferRequest, changes: Any) -> None:
    data = bytearray(sent.SerializeToString())
    for at, size, other in changes:
        data[at : at + size] = other
    assert outcome(read, bytes(data)) == outcome(decode_request, bytes(data))


@pytest.mark.parametrize(
    ("more", "is_read"),
    [
        (b"", True),
        (b"\x1a\1a\x1a\1b", False),
        (b"\x0a\1\xff\x0a\1m", False),
        (b"\x22\x09\x0a\1a\x12\4\x1a\2xy", True),
        (b"\x3a\x80\x80\0", True),
        (b"\x22\x04\x12\2\x10\1", True),
        (b"\x1a\1\xff", False),
        (b"\x3a\xff\xff\xff\xff\xff\xff", False),
        (b"\x3a\x80", False),
        (b"\x3a\xff\xff\xff\xff\x7f", False),
        (b"\x3a" + b"\x80" * 10 + b"\0", False),
        (b"\x3a", False),
        (b"\x38\1", False),
        (b"\xba\1\0", False),
        (b"\x02\0", False),
        (b"\x42\0", False),
        (b"\x3a\0" * 65, False),
        (b"\x2a\3\x18\1\x18", False),
        (b"\x22\3\x0a\1a", False),
        (b"\x22\5\x0a\1a\x12\0", False),
        (b"\x22\x09\x0a\1a\x12\4\x10\1\x08\1", False),
        (b"\x22\x0b\x0a\1a\x12\2\x10\1\x12\2\x10\1", False),
        (b"\x22\x09\x0a\1a\x12\4\x21\0\0\0", False),
    ],
)
def test_what_is_left_to_python(read: Read, read_in_c: Read, more: bytes, is_read: bool) -> None:
    data = message().SerializeToString() + more
    assert (read_in_c(data, 0.0) is not None) is is_read
    assert outcome(read, data) == outcome(decode_request, data)


def test_ordinary_messages_are_not_left_to_python(read_in_c: Read) -> None:
    sent = message(
        (b"1234", bytes(5000)),
        model_version="78",
        id="é",
        parameters={
            **{"priority": number(3), "a": number(-1), "sequence_id": number(-1), "timeout": number(9)},
            **{"b": pb.InferParameter(bool_param=True), "c": pb.InferParameter(double_param=1.5)},
        },
    )
    sent.inputs.insert(1, pb.ModelInferRequest.InferInputTensor(name="S", datatype="FP32", shape=[1]))
    placed(sent.inputs[1], offset=number(-1))
    placed(sent.outputs.add(name="O"), "é")
    data = sent.SerializeToString()
    for held in (data, bytearray(data), memoryview(data)):
        found = read_in_c(held, 2.5)
        assert outcome(lambda *_, found=found: found, held) == outcome(decode_request, data)
    assert (found.deadline, found.priority, found.regions) == (2.5, 3, True)
    assert (found.sequence_id, found.timeout_us) == ((1 << 64) - 1, 9)


def test_long_contents_are_views_of_the_message(read: Read) -> None:
    data = message((bytes(5000), bytes(10))).SerializeToString()
    long, short = (tensor.data for tensor in read(data, 0.0).inputs)
    assert isinstance(long, memoryview) and long.obj is data and len(long) == 5000
    assert type(short) is bytes


@pytest.mark.parametrize("cut", range(80))
def test_messages_that_are_cut(read: Read, cut: int) -> None:
    data = message(model_version="80", id="identifier", parameters={"a": number(1)}).SerializeToString()[:cut]
    assert outcome(read, data) == outcome(decode_request, data)


@pytest.mark.parametrize("datatype", ["BYTES", "UINT8", "FP64", "none"])
@pytest.mark.parametrize(
    "shape", [[1, 1 << 40], [1, (1 << 63) - 1], [-1, 1 << 62], [0, 1 << 62], [2] * 62, [2] * 200, []]
)
def test_a_shape_is_no_size(read: Read, shape: list[int], datatype: str) -> None:
    sent = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1\0\0\0x"])
    sent.inputs.add(name="I", datatype=datatype, shape=shape)
    data = sent.SerializeToString()
    tracemalloc.start()
    try:
        for decode in (decode_request, read):
            (tensor,) = decode(data, 0.0).inputs
            assert (tensor.shape, bytes(tensor.data)) == (tuple(shape), b"\1\0\0\0x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_the_reader_leaves_nothing_behind(read_in_c: Read) -> None:
    parameters = {"a": number(400), "sequence_id": number(1 << 40)}
    sent = message((b"1234", bytes(5000)), id="i", parameters=parameters)
    placed(sent.outputs.add(name="O"))
    data = sent.SerializeToString()
    bad = (b"\x1a\1\xff", b"\x22\x07\x0a\1\xff\x12\2\x10\1", b"\x2a\0", b"\x32\3\x0a\1\xff", b"\x22\0")

    def run() -> None:
        assert read_in_c(data, 1.5) is not None
        for other in (*(data + more for more in bad), data[:20], data[:-1]):
            assert read_in_c(other, 1.5) is None

    for _ in range(20):
        run()
    gc.collect()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(InferRequest)
    for _ in range(200):
        run()
    assert sys.getallocatedblocks() - blocks < 100
    assert sys.getrefcount(InferRequest) == references


def test_requests_do_not_share_parameters(read: Read) -> None:
    data = message().SerializeToString()
    first, second = read(data, 0.0), read(data, 0.0)
    assert first == msgspec.structs.replace(second) and first.parameters is not second.parameters


def test_arguments_are_checked(read: Read) -> None:
    for arguments in ((), ("text", 1.0), (1, 2, 3)):
        with pytest.raises(TypeError):
            read(*arguments)
