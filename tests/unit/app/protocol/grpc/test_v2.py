"""The gRPC codec against the protobuf runtime and against tritonclient's own encoder."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.datatypes import unpack_bytes
from app.core.errors import ErrorCode, InferError, invalid_arg
from app.core.tensors import InferRequest, InferResponse, RegionSlice, RequestedOutput, Tensor, failed
from app.protocol.grpc import v2
from app.protocol.grpc.v2 import (
    decode_infer,
    encode_infer,
    encode_stream,
    encode_stream_error,
    parse_infer,
)


def request_message(**fields):
    message = pb.ModelInferRequest(model_name="m", model_version="3", id="7", **fields)
    message.inputs.add(name="A", datatype="INT32", shape=[1, 2])
    return message


MODEL = SimpleNamespace(labels={"A": ("zero", "one")}, batched=False)


def encoded(response, request=None):
    request = request or InferRequest("m", "", (), id="7")
    return pb.ModelInferResponse.FromString(b"".join(encode_infer(request, response, MODEL)))


def refusal(message):
    with pytest.raises(InferError) as caught:
        decode_infer(message)
    return caught.value.code, caught.value.message


def test_raw_contents_become_tensors():
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


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000, 3_000_000])
def test_parse_gives_the_same_whatever_the_size(size):
    message = request_message(raw_input_contents=[b"x" * size, b"", b"yz"])
    message.parameters["p"].int64_param = 5
    parsed, raw = parse_infer(message.SerializeToString())
    assert [bytes(content) for content in raw] == [b"x" * size, b"", b"yz"]
    assert parsed.inputs == message.inputs and parsed.parameters["p"].int64_param == 5


def test_large_raw_contents_are_views_of_the_received_bytes():
    data = request_message(raw_input_contents=[b"x" * 100_000]).SerializeToString()
    _, raw = parse_infer(data)
    assert isinstance(raw[0], memoryview) and raw[0].obj is data


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x3a\xff\xff\xff\xff\xff\xff", b"\x0a\x05ab", b"\x0b", b"\x0a\x01\xff", b"\x3a\x7f"]
)
@pytest.mark.parametrize("cut_from", [0, 1 << 30])
def test_bytes_that_are_no_message_are_refused(data, cut_from, monkeypatch):
    monkeypatch.setattr(v2, "_CUT_FROM_BYTES", cut_from)
    with pytest.raises(InferError) as caught:
        parse_infer(data)
    assert caught.value.code is ErrorCode.INTERNAL


def test_fields_of_another_wire_type_are_left_to_protobuf(monkeypatch):
    monkeypatch.setattr(v2, "_CUT_FROM_BYTES", 0)
    unknown = b"\x78\x01" + b"\x82\x01\x03abc"  # field 15 a varint, field 16 bytes
    parsed, raw = parse_infer(unknown + request_message(raw_input_contents=[b"12"]).SerializeToString())
    assert (parsed.model_name, list(raw)) == ("m", [b"12"])


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
def test_typed_contents_are_packed(datatype, field, values, wire):
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype=datatype, shape=[2], contents={field: values})
    assert decode_infer(message).inputs[0] == Tensor("A", datatype, (2,), wire)


def test_empty_contents_are_a_tensor_without_elements():
    message = pb.ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="FP16", shape=[0], contents={})
    assert decode_infer(message).inputs[0].data == b""


def typed_message(datatype, **contents):
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
def test_tensor_data_that_does_not_fit_the_protocol(message, text):
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_contents_beside_raw_contents_are_refused():
    message = typed_message("INT32", int_contents=[1])
    message.raw_input_contents.append(b"1234")
    text = "contents field must not be specified when using raw_input_contents for 'A' for model 'm'"
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_shared_memory_parameters_are_checked():
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
def test_a_place_in_no_shared_memory(key):
    with_input, with_output = request_message(), request_message()
    with_input.inputs[0].parameters[key].int64_param = 8
    with_output.outputs.add(name="A").parameters[key].int64_param = 8
    with_output.raw_input_contents.append(bytes(4))
    for message in (with_input, with_output):
        text = f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor 'A'"
        assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_shared_memory_is_decoded():
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
def test_classification_parameter_is_checked(kind, value, text):
    message = request_message(raw_input_contents=[b""])
    setattr(message.outputs.add(name="B").parameters["classification"], kind, value)
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_classification_beside_shared_memory_is_refused():
    message = request_message(raw_input_contents=[b""])
    output = message.outputs.add(name="B")
    output.parameters["classification"].int64_param = 1
    output.parameters["shared_memory_region"].string_param = "r"
    text = "output can't set both 'shared_memory_region' and 'classification'"
    assert refusal(message) == (ErrorCode.INVALID_ARG, text)


def test_response_keeps_order_and_bytes():
    outputs = (
        Tensor("B", "BYTES", (0,), b""),
        Tensor.of("A", np.arange(3, dtype=np.int16)),
        Tensor("C", "FP32", (1, 70_000), memoryview(b"abcd" * 70_000)),
    )
    message = encoded(InferResponse("m", "12", outputs, parameters={"b": True, "i": 3, "f": 0.5, "s": "x"}))
    assert (message.model_name, message.model_version, message.id) == ("m", "12", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in message.outputs] == [
        ("B", "BYTES", [0]),
        ("A", "INT16", [3]),
        ("C", "FP32", [1, 70_000]),
    ]
    assert list(message.raw_output_contents) == [b"", b"\0\0\x01\0\x02\0", b"abcd" * 70_000]
    kinds = {key: value.WhichOneof("parameter_choice") for key, value in message.parameters.items()}
    assert kinds == {"b": "bool_param", "i": "int64_param", "f": "double_param", "s": "string_param"}


def test_classified_outputs_are_replaced():
    request = InferRequest("m", "", (), (RequestedOutput("A", classification=2), RequestedOutput("B")))
    outputs = (Tensor("A", "INT8", (3,), b"\x01\x03\x02"), Tensor("B", "INT8", (1,), b"5"))
    message = encoded(InferResponse("m", "1", outputs), request)
    top, other = message.raw_output_contents
    assert (unpack_bytes(top, 2), other) == ([b"3:1:one", b"2:2"], b"5")
    assert message.outputs[0].datatype == "BYTES" and list(message.outputs[0].shape) == [2]


def joined_infer(*arguments):
    return b"".join(encode_infer(*arguments))


@pytest.mark.parametrize("encode", [joined_infer, encode_stream])
def test_a_response_over_the_limit_of_grpc_is_refused(encode):
    response = InferResponse("m", "1", (Tensor("A", "INT8", (100,), b"x" * 100),))
    with pytest.raises(
        InferError, match=r"Response has byte size \d+ which exceeds gRPC's byte size limit 100\."
    ):
        encode(InferRequest("m", "", ()), response, MODEL, 100)
    size = len(encode(InferRequest("m", "", ()), response, MODEL))
    assert len(encode(InferRequest("m", "", ()), response, MODEL, size)) == size


def stream_message(data):
    return pb.ModelStreamInferResponse.FromString(data)


@pytest.mark.parametrize("final", [True, False])
def test_stream_responses_say_whether_they_are_final(final):
    request = InferRequest("m", "", (), id="7")
    response = InferResponse("m", "1", (Tensor("A", "INT8", (1,), b"x"),), final=final)
    message = stream_message(encode_stream(request, response, MODEL))
    assert message.error_message == ""
    assert message.infer_response.parameters["triton_final_response"].bool_param is final
    assert (message.infer_response.id, message.infer_response.raw_output_contents[0]) == ("7", b"x")


def test_stream_errors_are_in_band():
    request = InferRequest("m", "", (), id="7")
    message = stream_message(encode_stream(request, failed(invalid_arg("bad")), MODEL))
    assert (message.error_message, message.infer_response.id) == ("bad", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param is True
    message = stream_message(encode_stream_error("8", invalid_arg("worse")))
    assert (message.error_message, message.infer_response.id) == ("worse", "8")
    assert not message.infer_response.parameters


@pytest.mark.parametrize("field", ["inputs", "outputs", "parameters"])
def test_counts_are_bounded(field):
    message = pb.ModelInferRequest(model_name="m")
    for number in range(5000):
        if field == "parameters":
            message.parameters[str(number)].int64_param = 1
        else:
            getattr(message, field).add(name=str(number))
    with pytest.raises(InferError, match="a request may have at most 4096 inputs") as caught:
        decode_infer(message)
    assert caught.value.code is ErrorCode.INVALID_ARG
