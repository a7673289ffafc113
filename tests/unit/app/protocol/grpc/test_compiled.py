"""Requests read by the extension: the same as by protobuf."""

import gc
import sys
import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import InferError
from app.core.tensors import InferRequest, RegionSlice, Tensor
from app.native.choice import missing
from app.protocol.grpc.compiled import RequestTemplates, request_decoder
from app.protocol.grpc.request_message import decode_infer, decode_request


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
    compiled = request_decoder("auto")
    for decode in (decode_request, compiled, compiled):  # the last time by template
        assert plain(decode(sent.SerializeToString(), 2.5)) == decode_infer(sent, deadline=2.5)


def test_large_contents_are_views_of_the_message() -> None:
    data = message((bytes(100_000),)).SerializeToString()
    compiled = request_decoder("auto")
    for decode in (decode_request, compiled, compiled):
        assert decode(data, 0.0).inputs[0].data.obj is data


def test_known_header_without_its_contents_is_refused() -> None:
    decode = request_decoder("auto")
    decode(message().SerializeToString(), 0.0)
    lacking = message()
    del lacking.raw_input_contents[:]
    with pytest.raises(InferError, match="unable to find data for input tensor 'I0'"):
        decode(lacking.SerializeToString(), 0.0)


@pytest.mark.parametrize(("field", "value"), [("bytes_contents", b"x"), ("int_contents", 7)])
def test_requests_with_typed_contents_have_no_template(
    field: str, value: Any, templates: RequestTemplates
) -> None:
    for number in (1, 2):
        sent = pb.ModelInferRequest(model_name="m")
        tensor = sent.inputs.add(
            name="I", datatype="BYTES" if field == "bytes_contents" else "INT32", shape=[1]
        )
        getattr(tensor.contents, field).append(value * number)
        assert templates.read(sent.SerializeToString(), 0.0) == decode_infer(sent)
    assert not len(templates.cache)


def test_requests_of_sequences_have_no_template(templates: RequestTemplates) -> None:
    templates.read(message(parameters={"sequence_id": number(1)}).SerializeToString(), 0.0)
    assert not len(templates.cache)


def test_long_headers_have_no_template(templates: RequestTemplates) -> None:
    templates.read(message(model_version="1" * 5000).SerializeToString(), 0.0)
    assert not len(templates.cache)


@pytest.mark.parametrize("error", [MemoryError(), KeyError("x"), ValueError("no")], ids=repr)
@pytest.mark.parametrize("step", ["split_request", "_make_template"])
def test_a_request_that_cannot_be_learned_is_read(
    step: str, error: Exception, templates: RequestTemplates
) -> None:
    data = message().SerializeToString()
    with patch(f"app.protocol.grpc.compiled.{step}", side_effect=error):
        assert templates.read(data, 0.0) == decode_request(data)
    assert not len(templates.cache)


@pytest.fixture
def templates() -> RequestTemplates:
    return RequestTemplates()


@pytest.fixture
def read(templates: RequestTemplates) -> Any:
    """Return the compiled reader by itself."""
    extension = pytest.importorskip("app.native.extension")
    return extension.InferRequests(Tensor, InferRequest, templates.cache.entries, lambda *_: None).read


def test_repeated_requests_are_read_by_the_extension(read: Any, templates: RequestTemplates) -> None:
    sent = message(
        (b"1234", bytes(5000)), model_version="78", parameters={"priority": number(3), "a": number(1)}
    )
    sent.inputs[0].parameters["shared_memory_region"].string_param = "r"
    sent.inputs[0].parameters["shared_memory_byte_size"].int64_param = 4
    sent.outputs.add(name="O")
    data = sent.SerializeToString()
    assert read(data, 1.5) is None
    expected = templates.read(data, 1.5)
    for held in (data, bytearray(data), memoryview(data)):
        found = read(held, 1.5)
        assert plain_data(found) == plain_data(expected)
    assert (found.deadline, found.priority, found.regions) == (1.5, 3, True)
    found = read(message((b"abcd",) * 2, id="é").SerializeToString(), 0.0)
    assert found is None, "another header"


def number(value: int) -> pb.InferParameter:
    return pb.InferParameter(int64_param=value)


def plain_data(request: InferRequest) -> Any:
    return [(t.name, t.data if isinstance(t.data, RegionSlice) else bytes(t.data)) for t in request.inputs]


def test_long_contents_keep_the_message_that_they_are_views_of(
    read: Any, templates: RequestTemplates
) -> None:
    data = message((bytes(5000),), model_version="79").SerializeToString()
    templates.read(data, 0.0)
    found = read(data, 0.0)
    view = found.inputs[0].data
    assert isinstance(view, memoryview) and view.obj is data and len(view) == 5000


@pytest.mark.parametrize("cut", range(80))
def test_messages_that_are_cut_are_left_to_python(read: Any, templates: RequestTemplates, cut: int) -> None:
    data = message(model_version="80", id="identifier").SerializeToString()
    templates.read(data, 0.0)
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
def test_other_messages_are_left_to_python(read: Any, templates: RequestTemplates, more: bytes) -> None:
    data = message(model_version="81").SerializeToString()
    templates.read(data, 0.0)
    assert read(data, 0.0) is not None
    assert read(data + more, 0.0) is None


def test_a_request_with_fewer_contents_is_left_to_python(read: Any, templates: RequestTemplates) -> None:
    data = message(model_version="82")
    templates.read(data.SerializeToString(), 0.0)
    data.ClearField("raw_input_contents")
    assert read(data.SerializeToString(), 0.0) is None


def test_the_reader_leaves_nothing_behind(read: Any, templates: RequestTemplates) -> None:
    data = message((b"1234", bytes(5000)), model_version="83", id="i").SerializeToString()
    templates.read(data, 0.0)

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
