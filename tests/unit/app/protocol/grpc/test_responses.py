"""Encoding of responses, read back by protobuf."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.datatypes import unpack_bytes
from app.core.errors import InferError, invalid_arg
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor, failed
from app.protocol.grpc.responses import encode_infer, encode_stream, encode_stream_error

MODEL: Any = SimpleNamespace(labels={"A": ("zero", "one")}, batched=False, answering=lambda version: MODEL)


def encoded(response: Any, request: Any = None) -> Any:
    request = request or InferRequest("m", "", (), id="7")
    return pb.ModelInferResponse.FromString(b"".join(encode_infer(request, response, MODEL)))


def test_response_keeps_order_and_bytes() -> None:
    outputs = (
        Tensor("B", "BYTES", (0,), b""),
        Tensor.from_array("A", np.arange(3, dtype=np.int16)),
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


def test_classified_outputs_are_replaced() -> None:
    request = InferRequest("m", "", (), (RequestedOutput("A", classification=2), RequestedOutput("B")))
    outputs = (Tensor("A", "INT8", (3,), b"\x01\x03\x02"), Tensor("B", "INT8", (1,), b"5"))
    message = encoded(InferResponse("m", "1", outputs), request)
    top, other = message.raw_output_contents
    assert (unpack_bytes(top, 2), other) == ([b"3:1:one", b"2:2"], b"5")
    assert message.outputs[0].datatype == "BYTES" and list(message.outputs[0].shape) == [2]


def joined_infer(*arguments: Any) -> Any:
    return b"".join(encode_infer(*arguments))


@pytest.mark.parametrize("encode", [joined_infer, encode_stream])
def test_a_response_over_the_limit_of_grpc_is_refused(encode: Any) -> None:
    response = InferResponse("m", "1", (Tensor("A", "INT8", (100,), b"x" * 100),))
    with pytest.raises(
        InferError, match=r"Response has byte size \d+ which exceeds gRPC's byte size limit 100\."
    ):
        encode(InferRequest("m", "", ()), response, MODEL, 100)
    size = len(encode(InferRequest("m", "", ()), response, MODEL))
    assert len(encode(InferRequest("m", "", ()), response, MODEL, size)) == size


def stream_message(data: bytes) -> Any:
    return pb.ModelStreamInferResponse.FromString(data)


@pytest.mark.parametrize("final", [True, False])
def test_stream_responses_carry_the_final_flag(final: bool) -> None:
    request = InferRequest("m", "", (), id="7")
    response = InferResponse("m", "1", (Tensor("A", "INT8", (1,), b"x"),), final=final)
    message = stream_message(encode_stream(request, response, MODEL))
    assert message.error_message == ""
    assert message.infer_response.parameters["triton_final_response"].bool_param is final
    assert (message.infer_response.id, message.infer_response.raw_output_contents[0]) == ("7", b"x")


def test_stream_errors_are_in_band() -> None:
    request = InferRequest("m", "", (), id="7")
    message = stream_message(encode_stream(request, failed(invalid_arg("bad")), MODEL))
    assert (message.error_message, message.infer_response.id) == ("bad", "7")
    assert message.infer_response.parameters["triton_final_response"].bool_param is True
    message = stream_message(encode_stream_error("8", invalid_arg("worse").failure))
    assert (message.error_message, message.infer_response.id) == ("worse", "8")
    assert not message.infer_response.parameters
