"""Requests decoded by templates: the same as by protobuf."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest
from app.protocol.grpc import request_template
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
    for _ in range(2):  # the second time by template
        assert plain(decode_request(sent.SerializeToString(), 2.5)) == decode_infer(sent, deadline=2.5)


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
        assert split is not None and request_template._templates.get(split.header) is None


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
