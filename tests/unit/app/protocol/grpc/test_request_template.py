"""Requests decoded by templates: the same as by protobuf."""

import gc
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, RegionSlice, Tensor
from app.native.choice import missing
from app.protocol.grpc import request_template
from app.protocol.grpc.compiled import request_decoder
from app.protocol.grpc.request_message import decode_infer
from app.protocol.grpc.request_template import decode_request, parse_infer, split_request


def message(raw: tuple[bytes, ...] = (b"1234",), **fields: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(model_name="m", raw_input_contents=raw, **fields)
    for i, piece in enumerate(raw):
        made.inputs.add(name=f"I{i}", datatype="UINT8", shape=[len(piece)])
    return made


def plain(request: InferRequest) -> InferRequest:
    """With its data as bytes, which compare."""
    inputs = [type(t)(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs]
    fields = {name: getattr(request, name) for name in request.__struct_fields__}
    return InferRequest(**(fields | {"inputs": tuple(inputs)}))


texts = st.text(max_size=200)


@given(
    st.lists(st.binary(max_size=300) | st.integers(4000, 5000).map(bytes), max_size=3),
    texts,
    texts,
    st.lists(texts, max_size=2),
    st.dictionaries(st.sampled_from(["a", "priority", "timeout", "sequence_id"]), st.integers(0, 9)),
)
def test_decoded_request_equals_that_of_protobuf(
    raw: list[bytes], identifier: str, version: str, outputs: list[str], parameters: dict[str, int]
) -> None:
    sent = message(tuple(raw), id=identifier, model_version=version)
    for name in outputs:
        sent.outputs.add(name=name)
    for name, value in parameters.items():
        sent.parameters[name].int64_param = value
    for decode in (decode_request, decode_request, request_decoder("auto")):  # the second time by template
        assert plain(decode(sent.SerializeToString(), 2.5)) == decode_infer(sent, deadline=2.5)


def test_repeated_header_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_request(message(model_version="77", id="first").SerializeToString())
    monkeypatch.setattr(request_template, "decode_infer", None)
    request = decode_request(message((b"abcd",), model_version="77", id="ö").SerializeToString(), 1.0)
    assert (request.id, request.inputs[0].data, request.deadline) == ("ö", b"abcd", 1.0)


def test_large_contents_are_views_of_the_message() -> None:
    data = message((bytes(100_000),)).SerializeToString()
    for _ in range(2):
        assert decode_request(data).inputs[0].data.obj is data


def test_known_header_without_its_contents_is_refused() -> None:
    decode_request(message().SerializeToString())
    lacking = message()
    del lacking.raw_input_contents[:]
    with pytest.raises(InferError, match="unable to find data for input tensor 'I0'"):
        decode_request(lacking.SerializeToString())


@pytest.mark.parametrize(("field", "value"), [("bytes_contents", b"x"), ("int_contents", 7)])
def test_requests_with_typed_contents_have_no_template(field: str, value: Any) -> None:
    for number in (1, 2):
        sent = pb.ModelInferRequest(model_name="m")
        tensor = sent.inputs.add(
            name="I", datatype="BYTES" if field == "bytes_contents" else "INT32", shape=[1]
        )
        getattr(tensor.contents, field).append(value * number)
        assert decode_request(sent.SerializeToString()) == decode_infer(sent)
        split = split_request(sent.SerializeToString())
        assert split is not None and request_template.templates.get(split.header) is None


def test_unknown_and_repeated_fields_are_decoded_by_protobuf() -> None:
    sent = message(id="a")
    more = b"\x82\x7d\x03new" + pb.ModelInferRequest(id="b").SerializeToString()
    request = decode_request(sent.SerializeToString() + more)
    assert (request.id, request.inputs[0].data) == ("b", b"1234")
    request = decode_request(sent.SerializeToString() + pb.ModelInferRequest(id="b").SerializeToString())
    assert (request.id, request.inputs[0].data) == ("b", b"1234")


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x3a\x05abc", b"\x1a\x02\xff\xfe", b"\x3a" + b"\xff" * 9, b"\x0a\x01\xff"]
)
def test_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(InferError) as caught:
        decode_request(data)
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INTERNAL,
        "failed to parse the request message",
    )


@given(st.binary(max_size=60))
def test_random_bytes_decode_as_by_protobuf(data: bytes) -> None:
    try:
        expected: Any = decode_infer(pb.ModelInferRequest.FromString(data))
    except Exception:
        with pytest.raises(InferError):
            decode_request(data)
    else:
        assert plain(decode_request(data)) == expected


def parsed_message(**fields: Any) -> Any:
    message = pb.ModelInferRequest(model_name="m", model_version="3", id="7", **fields)
    message.inputs.add(name="A", datatype="INT32", shape=[1, 2])
    return message


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000, 3_000_000])
def test_parsed_message_and_contents_equal_those_of_protobuf(size: int) -> None:
    message = parsed_message(raw_input_contents=[b"x" * size, b"", b"yz"])
    message.parameters["p"].int64_param = 5
    parsed, raw = parse_infer(message.SerializeToString())
    assert [bytes(content) for content in raw] == [b"x" * size, b"", b"yz"]
    assert parsed.inputs == message.inputs and parsed.parameters["p"].int64_param == 5


def test_parsed_large_contents_are_views() -> None:
    data = parsed_message(raw_input_contents=[b"x" * 100_000]).SerializeToString()
    _, raw = parse_infer(data)
    assert isinstance(raw[0], memoryview) and raw[0].obj is data


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x3a\xff\xff\xff\xff\xff\xff", b"\x0a\x05ab", b"\x0b", b"\x0a\x01\xff", b"\x3a\x7f"]
)
@pytest.mark.parametrize("split_from", [0, 1 << 30])
def test_malformed_message_is_refused(data: bytes, split_from: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_template, "_SPLIT_FROM", split_from)
    with pytest.raises(InferError) as caught:
        parse_infer(data)
    assert caught.value.code is ErrorCode.INTERNAL


def test_fields_of_another_wire_type_are_parsed_by_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_template, "_SPLIT_FROM", 0)
    unknown = b"\x78\x01" + b"\x82\x01\x03abc"  # field 15 a varint, field 16 bytes
    parsed, raw = parse_infer(unknown + parsed_message(raw_input_contents=[b"12"]).SerializeToString())
    assert (parsed.model_name, list(raw)) == ("m", [b"12"])


@pytest.fixture
def read() -> Any:
    """Return the compiled reader by itself."""
    extension = pytest.importorskip("app.native.extension")
    templates = request_template.templates.entries
    return extension.InferRequests(Tensor, InferRequest, templates, lambda *_: None).read


def test_repeated_requests_are_read_by_the_extension(read: Any) -> None:
    sent = message(
        (b"1234", bytes(5000)), model_version="78", parameters={"priority": number(3), "a": number(1)}
    )
    sent.inputs[0].parameters["shared_memory_region"].string_param = "r"
    sent.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    sent.outputs.add(name="O")
    data = sent.SerializeToString()
    assert read(data, 1.5) is None
    expected = decode_request(data, 1.5)
    for held in (data, bytearray(data), memoryview(data)):
        found = read(held, 1.5)
        assert plain_data(found) == plain_data(expected)
    assert (found.deadline, found.priority, found.regions) == (1.5, 3, True)
    found = read(message((b"abcd",) * 2, id="é").SerializeToString(), 0.0)
    assert found is None, "another header"


def number(value: int) -> pb.InferParameter:
    return pb.InferParameter(int64_param=value)


def plain_data(request: InferRequest) -> Any:
    return [
        (t.name, t.data if isinstance(t.data, RegionSlice) else (type(t.data), bytes(t.data)))
        for t in request.inputs
    ]


def test_long_contents_keep_the_message_that_they_are_views_of(read: Any) -> None:
    data = message((bytes(5000),), model_version="79").SerializeToString()
    decode_request(data)
    found = read(data, 0.0)
    view = found.inputs[0].data
    assert isinstance(view, memoryview) and view.obj is data and len(view) == 5000


@pytest.mark.parametrize("cut", range(80))
def test_messages_that_are_cut_are_left_to_python(read: Any, cut: int) -> None:
    data = message(model_version="80", id="identifier").SerializeToString()
    decode_request(data)
    assert read(data, 0.0) is not None
    if cut < len(data):
        found = read(data[:cut], 0.0)
        assert found is None or plain(found) == plain(decode_request(data[:cut]))


@pytest.mark.parametrize(
    "more",
    [
        b"\x1a\1a\x1a\1b",
        b"\x1a\1\xff",
        b"\x3a\xff\xff\xff\xff\xff\xff",
        b"\x3a\x80",
        b"\x3a\xff\xff\xff\xff\x7f",
        b"\x3a",
        b"\x38\1",
        b"\xba\1\0",
        b"\x3a\0" * 65,
        b"\x12\x80\x40" + bytes(8192),
    ],
)
def test_other_messages_are_left_to_python(read: Any, more: bytes) -> None:
    data = message(model_version="81").SerializeToString()
    decode_request(data)
    assert read(data, 0.0) is not None
    assert read(data + more, 0.0) is None


def test_a_request_with_fewer_contents_is_left_to_python(read: Any) -> None:
    data = message(model_version="82")
    decode_request(data.SerializeToString())
    data.ClearField("raw_input_contents")
    assert read(data.SerializeToString(), 0.0) is None


def test_the_reader_leaves_nothing_behind(read: Any) -> None:
    data = message((b"1234", bytes(5000)), model_version="83", id="i").SerializeToString()
    decode_request(data)

    def run() -> None:
        for sent in (data, data[:-1], data + b"\x1a\1\xff", data[:20]):
            read(sent, 1.5)

    for _ in range(20):
        run()
    gc.collect()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(InferRequest)
    for _ in range(200):
        run()
    left = sys.getallocatedblocks() - blocks
    assert left < 100
    assert sys.getrefcount(InferRequest) == references


def test_arguments_of_the_reader_are_checked(read: Any) -> None:
    for arguments in ((), ("text", 1.0), (1, 2, 3)):
        with pytest.raises(TypeError):
            read(*arguments)
    with pytest.raises(TypeError):
        type(read.__self__)(1, 2, 3, 4)
    wrong: tuple[Any, ...] = (1, (None,) * 9, ("m", "", ((1,),), (), {}, 0, 0, False, 0))
    for template in wrong:
        made = type(read.__self__)(Tensor, InferRequest, {b"": template}, lambda *given: given)
        assert made.read(b"", 0.5) == (b"", 0.5)


def test_without_the_extension_python_decodes() -> None:
    assert request_decoder("python") is decode_request
    assert (request_decoder("auto") is decode_request) is bool(missing())


@pytest.mark.parametrize("datatype", ["BYTES", "UINT8", "FP64", "none"])
@pytest.mark.parametrize(
    "shape", [[1, 1 << 40], [1, (1 << 63) - 1], [-1, 1 << 62], [0, 1 << 62], [2] * 62, [2] * 200, []]
)
def test_a_shape_is_no_size(shape: list[int], datatype: str) -> None:
    sent = pb.ModelInferRequest(model_name="m", raw_input_contents=[b"\1\0\0\0x"])
    sent.inputs.add(name="I", datatype=datatype, shape=shape)
    data = sent.SerializeToString()
    tracemalloc.start()
    try:
        for decode in (decode_request, request_decoder("auto")) * 3:
            (tensor,) = decode(data, 0.0).inputs
            assert (tensor.shape, bytes(tensor.data)) == (tuple(shape), b"\1\0\0\0x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
