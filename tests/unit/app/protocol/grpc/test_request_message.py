"""Decoding of ModelInferRequest messages."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferRequest, RegionSlice, RequestedOutput, Tensor
from app.protocol.grpc import request_message as reader
from app.protocol.grpc.request_message import decode_infer, decode_request, parse_infer


def request_message(**fields: Any) -> Any:
    message = pb.ModelInferRequest(model_name="m", model_version="3", id="7", **fields)
    message.inputs.add(name="A", datatype="INT32", shape=[1, 2])
    return message


def refusal(message: pb.ModelInferRequest) -> Any:
    with pytest.raises(InferError) as caught:
        decode_infer(message)
    return caught.value.code, caught.value.message


def test_raw_contents_become_tensors() -> None:
    message = request_message(raw_input_contents=[b"\x01\0\0\0\x02\0\0\0"])
    message.outputs.add(name="B")
    request = decode_infer(message, deadline=4.5)
    assert request == InferRequest(
        "m",
        "3",
        (Tensor("A", "INT32", (1, 2), b"\x01\0\0\0\x02\0\0\0"),),
        (RequestedOutput("B"),),
        id="7",
        deadline=4.5,
    )


TYPED = [
    ("BOOL", "bool_contents", [True, False], b"\x01\0"),
    ("INT8", "int_contents", [-1, 300], b"\xff\x2c"),
    ("INT16", "int_contents", [-1, 65538], b"\xff\xff\x02\0"),
    ("INT32", "int_contents", [-1, 2], struct.pack("<2i", -1, 2)),
    ("INT64", "int64_contents", [-(2**63), 2], struct.pack("<2q", -(2**63), 2)),
    ("UINT8", "uint_contents", [255, 300], b"\xff\x2c"),
    ("UINT16", "uint_contents", [65535, 65538], b"\xff\xff\x02\0"),
    ("UINT32", "uint_contents", [2**32 - 1, 2], struct.pack("<2I", 2**32 - 1, 2)),
    ("UINT64", "uint64_contents", [2**64 - 1, 2], struct.pack("<2Q", 2**64 - 1, 2)),
    ("FP32", "fp32_contents", [1.5, float("inf")], struct.pack("<2f", 1.5, float("inf"))),
    ("FP64", "fp64_contents", [1.1, -0.0], struct.pack("<2d", 1.1, -0.0)),
    ("BYTES", "bytes_contents", [b"", b"\xff\0z"], b"\0\0\0\0\x03\0\0\0\xff\0z"),
]


@pytest.mark.parametrize(("datatype", "field", "values", "wire"), TYPED, ids=[row[0] for row in TYPED])
def test_typed_contents_are_packed(datatype: str, field: Any, values: Any, wire: Any) -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype=datatype, shape=[2], contents={field: values})
    assert decode_infer(message).inputs[0] == Tensor("A", datatype, (2,), wire)


def test_empty_contents_are_a_tensor_without_elements() -> None:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="FP16", shape=[0], contents={})
    assert decode_infer(message).inputs[0].data == b""


def typed_message(datatype: str, **contents: Any) -> Any:
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype=datatype, shape=[1], contents=contents)
    return message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            typed_message("FP32", int_contents=[1]),
            "unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'INT32', "
            "expected datatype 'FP32'",
        ),
        (
            typed_message("FP99", uint_contents=[1]),
            "unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'UINT32', "
            "expected datatype '<invalid>'",
        ),
        (
            typed_message("FP16", fp32_contents=[1]),
            "unexpected explicit tensor data for input tensor 'A' for model 'm' of type 'FP32', "
            "expected datatype 'FP16'",
        ),
        (
            typed_message("INT32", int_contents=[1], fp32_contents=[1]),
            "unexpected explicit tensor data for input tensor 'A' for model 'm', "
            "binary data was already supplied.",
        ),
        (request_message(), "unable to find data for input tensor 'A' for model 'm' in request."),
    ],
)
def test_inconsistent_tensor_data_is_refused(message: pb.ModelInferRequest, text: str) -> None:
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_contents_beside_raw_contents_are_refused() -> None:
    message = typed_message("INT32", int_contents=[1])
    message.raw_input_contents.append(b"1234")
    text = "contents field must not be specified when using raw_input_contents for 'A' for model 'm'"
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_shared_memory_parameters_are_checked() -> None:
    message = request_message()
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    assert refusal(message) == (
        ErrorCode.INVALID_ARG,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
        "for tensor 'A'",
    )
    message.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    message.inputs[0].contents.int_contents.append(1)
    text = "unexpected 'content' provided when using shared memory for input tensor 'A' for model 'm'"
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)
    message.inputs[0].parameters["shared_memory_offset"].string_param = "8"
    text = "invalid value type for 'shared_memory_offset' parameter for tensor 'A', expected int64_param."
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize("key", ["shared_memory_byte_size", "shared_memory_offset"])
def test_offset_or_size_without_a_region_is_refused(key: str) -> None:
    with_input, with_output = request_message(), request_message()
    with_input.inputs[0].parameters[key].int64_param = 8
    with_output.outputs.add(name="A").parameters[key].int64_param = 8
    with_output.raw_input_contents.append(bytes(4))
    for message in (with_input, with_output):
        text = f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor 'A'"
        assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_shared_memory_is_decoded() -> None:
    message = request_message(raw_input_contents=[b"raw!"])
    message.inputs.add(name="B", datatype="INT32", shape=[1])
    output = message.outputs.add(name="C")
    for tensor, offset in ((message.inputs[0], 4), (output, -1)):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
        tensor.parameters["shared_memory_offset"].int64_param = offset
    request = decode_infer(message)
    assert request.regions
    assert [tensor.data for tensor in request.inputs] == [RegionSlice("r", 4, 8), b"raw!"]
    assert request.outputs[0].region == RegionSlice("r", 2**64 - 1, 8)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("string_param", "3", "invalid value type for 'classification' parameter, expected int64_param"),
        ("int64_param", 0, "invalid value for 'classification' parameter, expected >= 0"),
        ("int64_param", -1, "invalid value for 'classification' parameter, expected >= 0"),
    ],
)
def test_classification_parameter_is_checked(kind: str, value: object, text: str) -> None:
    message = request_message(raw_input_contents=[b""])
    setattr(message.outputs.add(name="B").parameters["classification"], kind, value)
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_classification_beside_shared_memory_is_refused() -> None:
    message = request_message(raw_input_contents=[b""])
    output = message.outputs.add(name="B")
    output.parameters["classification"].int64_param = 1
    output.parameters["shared_memory_region"].string_param = "r"
    text = "output can't set both 'shared_memory_region' and 'classification'"
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


@pytest.mark.parametrize("field", ["inputs", "outputs", "parameters"])
def test_counts_are_bounded(field: Any) -> None:
    message = pb.ModelInferRequest(model_name="m")
    for number in range(5000):
        if field == "parameters":
            message.parameters[str(number)].int64_param = 1
        else:
            getattr(message, field).add(name=str(number))
    with pytest.raises(InferError, match="a request may have at most 4096 inputs") as caught:
        decode_infer(message)
    assert caught.value.code is ErrorCode.INVALID_ARG


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000, 3_000_000])
def test_parsed_message_and_contents_equal_those_of_protobuf(size: int) -> None:
    message = request_message(raw_input_contents=[b"x" * size, b"", b"yz"])
    message.parameters["p"].int64_param = 5
    parsed, raw = parse_infer(message.SerializeToString())
    assert [bytes(content) for content in raw] == [b"x" * size, b"", b"yz"]
    assert parsed.inputs == message.inputs and parsed.parameters["p"].int64_param == 5


def test_parsed_large_contents_are_views() -> None:
    data = request_message(raw_input_contents=[b"x" * 100_000]).SerializeToString()
    _, raw = parse_infer(data)
    assert isinstance(raw[0], memoryview) and raw[0].obj is data


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x3a\xff\xff\xff\xff\xff\xff", b"\x0a\x05ab", b"\x0b", b"\x0a\x01\xff", b"\x3a\x7f"]
)
@pytest.mark.parametrize("split_from", [0, 1 << 30])
def test_malformed_message_is_refused(data: bytes, split_from: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SPLIT_FROM", split_from)
    with pytest.raises(InferError) as caught:
        parse_infer(data)
    assert caught.value.code is ErrorCode.INTERNAL


def test_fields_of_another_wire_type_are_parsed_by_protobuf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SPLIT_FROM", 0)
    unknown = b"\x78\x01" + b"\x82\x01\x03abc"  # field 15 a varint, field 16 bytes
    parsed, raw = parse_infer(unknown + request_message(raw_input_contents=[b"12"]).SerializeToString())
    assert (parsed.model_name, list(raw)) == ("m", [b"12"])


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
        assert decode_request(data) == expected


def test_unknown_and_repeated_fields_are_decoded_by_protobuf() -> None:
    sent = request_message(raw_input_contents=[b"12345678"])
    more = b"\x82\x7d\x03new" + pb.ModelInferRequest(id="b").SerializeToString()
    request = decode_request(sent.SerializeToString() + more)
    assert (request.id, request.inputs[0].data) == ("b", b"12345678")
    request = decode_request(sent.SerializeToString() + pb.ModelInferRequest(id="b").SerializeToString())
    assert (request.id, request.inputs[0].data) == ("b", b"12345678")
