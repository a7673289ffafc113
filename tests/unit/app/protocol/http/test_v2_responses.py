"""What HTTP clients are answered."""

import json
from typing import Any

import numpy as np
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse, Tensor
from app.protocol.http.v2 import encode_error, encode_infer
from tests.unit.app.protocol.http.http_documents import ARG, INT, MODEL, decode, one_output


def answer(*tensors: Any, outputs: Any = None, **fields: Any) -> Any:
    document = {"inputs": [], **(outputs or {})}
    return encode_infer(decode(document), InferResponse("m", "1", tensors, **fields), MODEL)


def test_binary_responses_do_not_mix_up_cached_headers() -> None:
    binary = {"outputs": [{"name": "O", "parameters": {"binary_data": True}}]}
    given = [(b"12", (1, 2), "1"), (b"34", (1, 2), "1"), (b"34", (2, 1), "1"), (b"345", (1, 3), "2")]
    for data, shape, version in given * 2:
        tensors = (Tensor("O", "INT8", shape, data),)
        encoded = encode_infer(decode({"inputs": [], **binary}), InferResponse("m", version, tensors), MODEL)
        head, *parts = encoded.parts
        assert json.loads(bytes(head)) == {
            "model_name": "m",
            "model_version": version,
            "outputs": [
                {
                    "name": "O",
                    "datatype": "INT8",
                    "shape": [*shape],
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
        }
        assert parts == [data] and f"Content-Length: {len(head)}\r\n".encode() in encoded.headers
    both = (Tensor("O", "INT8", (1,), b"1"), Tensor("P", "INT8", (1,), b"1"))
    head, *parts = answer(*both, outputs=binary).parts
    assert json.loads(bytes(head))["outputs"][1] == {
        "name": "P",
        "datatype": "INT8",
        "shape": [1],
        "data": [49],
    }
    assert parts == [b"1"]
    assert json.loads(answer(both[0], outputs={"id": "7", **binary}).parts[0])["id"] == "7"


@pytest.mark.parametrize(
    ("array", "datatype", "data"),
    [
        (np.array([0.1, 1, 3e38], np.float32), "", b"[0.10000000149011612,1.0,3.0000000054977558e38]"),
        (np.array([0.1, -0.0, 1e-5]), "", b"[0.1,-0.0,"),
        (np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), "", b"[NaN,Infinity,-Infinity,1.0]"),
        (np.array([[1, -2], [3, 4]], np.int8), "", b"[1,-2,3,4]"),
        (np.array([2**64 - 1], np.uint64), "", b"[18446744073709551615]"),
        (np.array([True, False]), "", b"[true,false]"),
        (np.array([b'a"\\\n', "é".encode()], object), "", '["a\\"\\\\\\n","é"]'.encode()),
        (np.array([b"\xff"], object), "", b'["\xff"]'),
        (np.zeros((0, 3), np.float32), "", b"[]"),
    ],
)
def test_json_outputs_are_encoded_like_triton(array: Any, datatype: str, data: bytes) -> None:
    encoded = answer(Tensor.from_array("O", array, datatype))
    assert encoded.headers == b"Content-Type: application/json\r\n"
    assert b'"data":' + data in encoded.parts[0]


def test_golden_responses() -> None:
    tensor = Tensor.from_array("O", np.array([[1.5, 2]], np.float32))
    assert answer(tensor, id="7", parameters={"k": 1, "b": True}).parts == [
        b'{"id":"7","model_name":"m","model_version":"1","parameters":{"k":1,"b":true},'
        b'"outputs":[{"name":"O","datatype":"FP32","shape":[1,2],"data":[1.5,2.0]}]}'
    ]
    header = (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"O","datatype":"FP32","shape":[1,2],'
        b'"parameters":{"binary_data_size":8}}]}'
    )
    encoded = answer(tensor, outputs=one_output(binary_data=True))
    assert encoded.headers == (
        b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(header)
    )
    assert encoded.parts == [header, tensor.data]
    assert encoded.parts[1] is tensor.data


def test_an_empty_binary_output_leaves_a_json_body() -> None:
    encoded = answer(Tensor("O", "INT8", (0,), b""), outputs=one_output(binary_data=True))
    assert encoded.headers == b"Content-Type: application/json\r\n"
    assert b'"parameters":{"binary_data_size":0}' in encoded.parts[0]


def test_classification_output() -> None:
    tensor = Tensor.from_array("O", np.array([[1, 3, 2], [-1, -2, -31]], np.float32))
    encoded = answer(tensor, outputs=one_output(classification=2))
    assert json.loads(encoded.parts[0])["outputs"] == [
        {
            "name": "O",
            "datatype": "BYTES",
            "shape": [2, 2],
            "data": ["3.000000:1:one", "2.000000:2", "-1.000000:0:zero", "-2.000000:1:one"],
        }
    ]


@pytest.mark.parametrize(
    ("tensor", "code", "message"),
    [
        (
            Tensor("O", "FP16", (1,), b"\0\0"),
            ARG,
            "sending FP16 data via JSON is not supported. Please use the binary data format for output",
        ),
        (
            Tensor("O", "BF16", (1,), b"\0\0"),
            ARG,
            "sending BF16 data via JSON is not supported. Please use the binary data format for output",
        ),
        (
            Tensor("O", "FP32", (2,), b"\0" * 4),
            INT,
            "output tensor shape does not match size of output for 'O'",
        ),
        (
            Tensor("O", "BYTES", (1,), b"\xff\0\0\0a"),
            INT,
            "output tensor shape does not match size of output for 'O'",
        ),
    ],
)
def test_outputs_that_json_cannot_hold_are_refused(tensor: Any, code: ErrorCode, message: str) -> None:
    with pytest.raises(InferError) as caught:
        answer(tensor)
    assert (caught.value.code, caught.value.message) == (code, message)


def test_error_bodies_are_always_json() -> None:
    assert encode_error('a "b"\n') == b'{"error":"a \\"b\\"\\n"}'
    assert json.loads(encode_error("\udcff"))
