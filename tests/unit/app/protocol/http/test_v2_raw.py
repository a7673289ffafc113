"""Requests whose body is one tensor and nothing else."""

from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.protocol.http.v2 import decode_raw


def a_config(text: str) -> Any:
    return text_format.Parse(text, mc.ModelConfig(name="m"))


FP32 = 'input { name: "I" data_type: TYPE_FP32 dims: %s } max_batch_size: %d'


@pytest.mark.parametrize(
    ("dims", "batch", "shape"), [("[-1]", 4, (1, 8)), ("[2, -1]", 0, (2, 4)), ("[8]", 0, (8,))]
)
def test_raw_request_deduces_its_shape(dims: tuple[int, ...], batch: int, shape: Any) -> None:
    infer = decode_raw("m", "", bytes(32), a_config(FP32 % (dims, batch)))
    assert (infer.request.inputs[0].shape, infer.binary_default) == (shape, True)


def test_raw_bytes_get_their_length_put_in_front() -> None:
    config = a_config('input { name: "I" data_type: TYPE_STRING dims: [1] }')
    assert decode_raw("m", "", b"427", config).request.inputs[0].data == b"\x03\0\0\x00427"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            'input { name: "A" } input { name: "B" } input { name: "C" }',
            "Raw request must only have 1 input (found 1) to be deduced but got 3 inputs in 'm' "
            "model configuration",
        ),
        (
            'input { name: "I" data_type: TYPE_STRING dims: [-1] }',
            "For BYTE datatype raw input 'I', the model must have input shape [1]",
        ),
        (
            FP32 % ("[-1, -1]", 0),
            "The shape of the raw input 'I' can not be deduced because there are more than one "
            "variable-sized dimension",
        ),
    ],
)
def test_raw_requests_refused(config: Any, message: str) -> None:
    with pytest.raises(InferError) as caught:
        decode_raw("m", "", b"1234", a_config(config))
    assert caught.value.message == f"[request id: <id_unknown>] {message}"


def test_raw_request_is_bounded() -> None:
    with pytest.raises(InferError, match=r"Raw input has a byte_size \(9 bytes\) that exceeds"):
        decode_raw("m", "", bytes(9), a_config(FP32 % ("[-1]", 0)), 8)
