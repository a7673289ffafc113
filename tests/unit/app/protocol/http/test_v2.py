"""HTTP infer requests, from their bytes to tensors."""

import json
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from app.core.datatypes import DATATYPES
from app.core.tensors import InferResponse, RegionSlice, RequestedOutput, Tensor
from app.protocol.http.v2 import decode_infer, encode_infer, parse_header_length
from tests.unit.app.protocol.http.http_documents import (
    ARG,
    MODEL,
    an_input,
    body,
    decode,
    one_output,
    refusal,
)


def test_binary_and_json_inputs_mix_without_copying_the_binary_ones() -> None:
    document = {
        "id": "7",
        "inputs": [
            an_input(name="A", parameters={"binary_data_size": 8}),
            an_input(name="B", data=[[3], [4]]),
            an_input(name="C", datatype="BYTES", parameters={"binary_data_size": 10}),
        ],
        "outputs": [
            {"name": "X", "parameters": {"binary_data": True}},
            {"name": "Y", "parameters": {"classification": 3}},
            {"name": "Z"},
        ],
    }
    whole, length = body(document, struct.pack("<ii", 1, 2), b"\x01\0\0\0a\x01\0\0\0b")
    request = decode_infer("m", "", whole, length).request
    assert [tensor.array().tolist() for tensor in request.inputs] == [[1, 2], [3, 4], [b"a", b"b"]]
    assert request.inputs[0].data.obj is whole
    assert request.outputs == (
        RequestedOutput("X", binary=True),
        RequestedOutput("Y", binary=False, classification=3),
        RequestedOutput("Z", binary=False),
    )
    assert (request.id, request.model_name, request.model_version) == ("7", "m", "")


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
def test_every_fixed_size_type_travels_in_binary_both_ways(datatype: str) -> None:
    size = 2 * DATATYPES[datatype].itemsize
    data = bytes(range(1, size + 1)) if datatype != "BOOL" else b"\x01\x00"
    infer = decode({"inputs": [an_input(datatype=datatype, parameters={"binary_data_size": size})]}, data)
    infer = msgspec.structs.replace(infer, binary_default=True)
    assert bytes(infer.request.inputs[0].data) == data
    encoded = encode_infer(infer, InferResponse("m", "1", infer.request.inputs), MODEL)
    assert bytes(encoded.parts[1]) == data
    assert json.loads(bytes(encoded.parts[0]))["outputs"] == [
        {"name": "I", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": size}}
    ]


@pytest.mark.parametrize(
    ("datatype", "given", "wanted"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT8", [300, 1], [44, 1]),
        ("UINT16", [65536, 7], [0, 7]),
        ("UINT32", [1 << 32, 3], [0, 3]),
        ("UINT64", [(1 << 64) - 1, 0], [(1 << 64) - 1, 0]),
        ("INT8", [200, -129], [-56, 127]),
        ("INT16", [1, -2], [1, -2]),
        ("INT32", [[1], [-2]], [1, -2]),
        ("INT64", [-(1 << 63), (1 << 63) - 1], [-(1 << 63), (1 << 63) - 1]),
        ("FP32", [1, 2.5], [1.0, 2.5]),
        ("FP32", [1e300, -1e300], [np.inf, -np.inf]),
        ("FP64", [1 << 70, 0.1], [float(1 << 70), 0.1]),
        ("BYTES", ["é", ""], ["é".encode(), b""]),
        ("INT32", [1, [2]], [1, 2]),
    ],
)
def test_json_data_becomes_wire_bytes(datatype: str, given: Any, wanted: Any) -> None:
    tensor = decode({"inputs": [an_input(datatype=datatype, data=given)]}).request.inputs[0]
    assert tensor.array().tolist() == wanted


def test_nan_and_infinity_literals_are_read() -> None:
    header = b'{"inputs":[{"name":"I","shape":[3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}'
    array = decode(header).request.inputs[0].array()
    assert np.isnan(array[0]) and array[1:].tolist() == [np.inf, -np.inf]


def test_json_strings_that_are_not_utf8_keep_their_bytes() -> None:
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"BYTES","data":["\xff\xfe"]}]}'
    assert decode(header).request.inputs[0].array().tolist() == [b"\xff\xfe"]


def test_reserved_and_custom_parameters_are_separated() -> None:
    document = {
        "inputs": [],
        "parameters": {
            "sequence_id": 9,
            "sequence_start": True,
            "sequence_end": False,
            "priority": 2,
            "timeout": 100,
            "binary_data_output": True,
            "flag": True,
            "count": 3,
            "ratio": 0.5,
            "text": "x",
            "huge": 1 << 63,
        },
    }
    infer = decode(document)
    request = infer.request
    assert (request.sequence_id, request.sequence_start, request.sequence_end) == (9, True, False)
    assert (request.priority, request.timeout_us, infer.binary_default) == (2, 100, True)
    assert request.parameters == {"flag": True, "count": 3, "ratio": 0.5, "text": "x", "huge": 2.0**63}
    assert decode({"inputs": [], "parameters": {"sequence_id": "abc"}}).request.sequence_id == "abc"


def test_shared_memory_is_decoded_and_left_out_of_the_response() -> None:
    document = {
        "inputs": [
            an_input(name="A", parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}),
            an_input(name="B", parameters={"binary_data_size": 8}),
        ],
        **one_output(shared_memory_region="s", shared_memory_byte_size=4, shared_memory_offset=16),
    }
    infer = decode(document, bytes(8))
    assert infer.request.regions and not infer.needs_json_encoding
    assert infer.request.inputs[0].data == RegionSlice("r", 0, 8)
    assert bytes(infer.request.inputs[1].data) == bytes(8)
    assert infer.request.outputs[0].region == RegionSlice("s", 16, 4)
    response = InferResponse("m", "1", (Tensor("O", "FP32", (1,), b""),))
    assert json.loads(bytes(encode_infer(infer, response, MODEL).parts[0]))["outputs"] == [
        {"name": "O", "datatype": "FP32", "shape": [1]}
    ]


def test_repeated_headers_do_not_share_data() -> None:
    document = {"inputs": [an_input(parameters={"binary_data_size": 8})]}
    first, second = (decode(document, struct.pack("<ii", n, n)).request for n in (1, 2))
    assert first.inputs[0].array().tolist() == [1, 1]
    assert second.inputs[0].array().tolist() == [2, 2]


def test_a_nesting_of_100_is_read_and_ragged_nesting_is_bounded() -> None:
    data = b"[" * 100 + b"1" + b"]" * 100
    header = b'{"inputs":[{"name":"I","shape":[1],"datatype":"INT32","data":%s}]}'
    assert decode(header % data).request.inputs[0].array().tolist() == [1]
    ragged = b"[1," + b"[" * 101 + b"]" * 101 + b"]"
    assert refusal(header % ragged)[0] is ARG


def test_header_lengths_accepted() -> None:
    assert [parse_header_length(text, 100) for text in ("0", "100", "007")] == [0, 100, 7]
