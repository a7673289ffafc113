"""HTTP requests that tritonclient cannot send: JSON by hand, lengths that lie, paths that are none."""

import json
import socket
from typing import Any

import numpy as np
import pytest

from tests.contract.conftest import Addresses
from tests.contract.wire import (
    BATCH,
    JSON_LENGTH,
    MODEL,
    SIMPLE,
    TIMEOUT_S,
    Wire,
    binary_request,
    check_alive,
    check_refusal,
)


def changed(index: int = 0, **fields: object) -> dict[str, Any]:
    """A request to `simple` with fields of one input changed; None removes one."""
    inputs: list[dict[str, Any]] = [dict(tensor) for tensor in SIMPLE["inputs"]]
    inputs[index].update(fields)
    inputs[index] = {key: value for key, value in inputs[index].items() if value is not None}
    return {"inputs": inputs}


def one_input(model_input: str, datatype: str, shape: list[int], data: object) -> dict[str, Any]:
    return {"inputs": [{"name": model_input, "shape": shape, "datatype": datatype, "data": data}]}


def test_json_both_ways(wire: Wire) -> None:
    answer = wire.infer(MODEL, {"id": "7", **SIMPLE})
    assert answer.headers["Content-Type"] == "application/json"
    assert JSON_LENGTH not in answer.headers
    assert answer.json == {
        "id": "7",
        "model_name": "simple",
        "model_version": "1",
        "outputs": [
            {"name": "OUTPUT0", "datatype": "INT32", "shape": [1, 16], "data": list(range(1, 17))},
            {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 16], "data": list(range(-1, 15))},
        ],
    }


def test_nested_and_flat_data_are_the_same(wire: Wire) -> None:
    for data in ([list(range(16))], [[[n] for n in range(16)]]):
        assert wire.infer(MODEL, changed(data=data)).json["outputs"][0]["data"] == list(range(1, 17))


def test_binary_output_on_demand(wire: Wire) -> None:
    answer = wire.infer(MODEL, {**SIMPLE, "parameters": {"binary_data_output": True}})
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert [output["parameters"] for output in answer.json["outputs"]] == [{"binary_data_size": 64}] * 2
    assert np.frombuffer(answer.binary, np.int32)[:16].tolist() == list(range(1, 17))


def test_a_requested_output_is_json_unless_it_says_binary(wire: Wire) -> None:
    """The request's `binary_data_output` is for outputs that are not listed."""
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]
    answer = wire.infer(MODEL, {**SIMPLE, "outputs": outputs, "parameters": {"binary_data_output": True}})
    first, second = answer.json["outputs"]
    assert first["parameters"] == {"binary_data_size": 64}
    assert second["data"] == list(range(-1, 15))
    assert np.frombuffer(answer.binary, np.int32).tolist() == list(range(1, 17))


def test_floats_print_as_triton_prints_them(wire: Wire) -> None:
    body = one_input("INPUT0", "FP32", [1, 4], [0.1, 1, -2.5, 1e6])
    answer = wire.infer("identity_fp32", body)
    assert b'"data":[0.10000000149011612,1.0,-2.5,1000000.0]' in answer.body


def test_not_a_number_and_infinity_are_literals(wire: Wire) -> None:
    body = b'{"inputs":[{"name":"INPUT0","shape":[1,3],"datatype":"FP32","data":[NaN,Infinity,-Infinity]}]}'
    answer = wire.infer("identity_fp32", body)
    assert answer.status == 200
    assert b'"data":[NaN,Infinity,-Infinity]' in answer.body


def test_integers_are_cut_like_a_c_cast(wire: Wire) -> None:
    body = one_input("INPUT_UINT8", "UINT8", [1, 2], [300, 255])
    answer = wire.infer("identity_all", {**body, "outputs": [{"name": "OUTPUT_UINT8"}]})
    assert answer.json["outputs"][0]["data"] == [44, 255]


def test_raw_binary_request(wire: Wire) -> None:
    array = np.arange(5, dtype=np.int32)
    answer = wire.infer("custom_identity_int32", b"", array.tobytes(), json_length=0)
    assert answer.status == 200
    assert answer.json["outputs"][0]["shape"] == [1, 5]
    assert answer.binary == array.tobytes()


def test_request_in_pieces(server: Addresses) -> None:
    """The head and the body of a request arrive byte by byte in several packets."""
    body = json.dumps(SIMPLE).encode()
    head = f"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = head + body
        for start in range(0, len(data), 7):
            connection.sendall(data[start : start + 7])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_chunked_request(server: Addresses) -> None:
    body = json.dumps(SIMPLE).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:50], body[50:])) + b"0\r\n\r\n"
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(head + chunks)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


NO_UNSIGNED = "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"
NO_SIGNED = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"
ODD = {
    "empty body": (
        b"",
        400,
        "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 "
        "inputs in 'simple' model configuration",
    ),
    "no JSON": (
        b"{",
        500,
        "failed to parse the request JSON buffer: Missing a name for object member. at 1",
    ),
    "JSON that stops": (
        b'{"inputs":[',
        500,
        "failed to parse the request JSON buffer: Invalid value. at 11",
    ),
    "JSON that is no object": (
        b"[]",
        500,
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
    ),
    "no inputs": (
        {},
        500,
        "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'",
    ),
    "inputs that are no array": (
        {"inputs": "x"},
        500,
        "Unable to parse 'inputs': attempt to access JSON non-array as array",
    ),
    "name that is no string": (
        changed(name=5),
        500,
        "Unable to parse 'name': attempt to access JSON non-string as string",
    ),
    "no shape": (
        changed(shape=None),
        500,
        "Unable to parse 'shape': attempt to access non-existing object member 'shape'",
    ),
    "no data type": (
        changed(datatype=None),
        500,
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
    ),
    "shape of strings": (changed(shape=["1", "16"]), 500, NO_UNSIGNED),
    "negative dimension": (
        changed(shape=[-1, 16]),
        500,
        NO_UNSIGNED,
    ),
    "no data": (
        changed(data=None),
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But no field is set",
    ),
    "two sources of data": (
        changed(parameters={"binary_data_size": 64}),
        400,
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        "'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'",
    ),
    "too much data": (
        changed(data=[1] * 17),
        500,
        "Unable to parse 'data': Shape does not match true shape of 'data' field",
    ),
    "too little data": (
        changed(data=[1] * 15),
        500,
        "Failed to parse 'data' field: shape does not match true shape",
    ),
    "fraction for an integer": (changed(data=[1.5] * 16), 500, NO_SIGNED),
    "string for an integer": (changed(data=["1"] * 16), 500, NO_SIGNED),
    "unknown data type": (changed(datatype="INT31"), 400, "invalid datatype for input INPUT0"),
    "half precision in JSON": (
        one_input("INPUT_FP16", "FP16", [1, 1], [1.0]),
        400,
        "receiving FP16 data via JSON is not supported. Please use the binary data format for input "
        "INPUT_FP16",
    ),
    "reserved parameter": (
        {**SIMPLE, "parameters": {"triton_x": 1}},
        400,
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    ),
    "parameter of no type": (
        {**SIMPLE, "parameters": {"mine": [1]}},
        400,
        "parameter 'mine' has invalid type. It should be either 'int', 'bool', or 'string'.",
    ),
    "unknown shared memory": (
        changed(data=None, parameters={"shared_memory_region": "r", "shared_memory_byte_size": 64}),
        404,
        "Unable to find shared memory region: 'r'",
    ),
}


@pytest.mark.parametrize(("body", "status", "text"), ODD.values(), ids=ODD.keys())
def test_odd_json(wire: Wire, body: object, status: int, text: str) -> None:
    model = "identity_all" if "INPUT_FP16" in str(body) else MODEL
    check_refusal(wire.infer(model, body), status, text)
    check_alive(wire)


BODY_SIZE = len(json.dumps(binary_request())) + 128
OUT_OF_BODY = f"inference header size should be in range (0, {BODY_SIZE})"
LENGTHS = {
    "more JSON than there is": (1_000_000, 400, f"{OUT_OF_BODY}, got: 1000000"),
    "negative": (-1, 400, f"{OUT_OF_BODY}, got: -1"),
    "no number": ("abc", 400, "Unable to parse Inference-Header-Content-Length, got: abc"),
    "beyond an int": (
        2**31,
        400,
        "Unable to parse Inference-Header-Content-Length, value is out of range "
        "[ -2147483648, 2147483647 ], got: 2147483648",
    ),
    "inside the JSON": (20, 500, "failed to parse the request JSON buffer: Invalid value. at 20"),
}


@pytest.mark.parametrize(("length", "status", "text"), LENGTHS.values(), ids=LENGTHS.keys())
def test_json_length_that_lies(wire: Wire, length: object, status: int, text: str) -> None:
    check_refusal(wire.infer(MODEL, binary_request(), BATCH * 2, json_length=length), status, text)
    check_alive(wire)


SIZES = {
    "less than announced": (
        binary_request(),
        BATCH + bytes(60),
        "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'",
    ),
    "more than announced": (
        binary_request(),
        BATCH * 2 + b"x",
        "unexpected additional input data for model 'simple'",
    ),
    "other than the shape says": (
        binary_request(60, 64),
        bytes(124),
        "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'simple'. "
        "Expected 64, got 60",
    ),
}


@pytest.mark.parametrize(("body", "binary", "text"), SIZES.values(), ids=SIZES.keys())
def test_binary_sizes_that_lie(wire: Wire, body: dict[str, Any], binary: bytes, text: str) -> None:
    check_refusal(wire.infer(MODEL, body, binary), 400, text)
    check_alive(wire)


PREFIX = "[request id: <id_unknown>] incomplete string"
SUBJECT = "for inference input 'INPUT0' for model 'simple_identity', expecting"
STRINGS = {
    "length cut short": (
        b"\1\0\0\0a\1\0",
        f"{PREFIX} length indicator {SUBJECT} 4 bytes but only 2 bytes available. Please make sure the "
        "string length indicator is in one buffer.",
    ),
    "string cut short": (
        b"\4\0\0\0abc",
        f"{PREFIX} data {SUBJECT} string of length 4 but only 3 bytes available",
    ),
    "gigabytes claimed": (
        b"\xff\xff\xff\xffabc",
        f"{PREFIX} data {SUBJECT} string of length 4294967295 but only 3 bytes available",
    ),
}


@pytest.mark.parametrize(("data", "text"), STRINGS.values(), ids=STRINGS.keys())
def test_strings_that_lie(wire: Wire, data: bytes, text: str) -> None:
    parameters = {"binary_data_size": len(data)}
    tensor = {"name": "INPUT0", "shape": [1, 2], "datatype": "BYTES", "parameters": parameters}
    check_refusal(wire.infer("simple_identity", {"inputs": [tensor]}, data), 400, text)
    check_alive(wire)


def test_oversized_json(wire: Wire) -> None:
    body = json.dumps({"id": "x" * (64 << 20), **SIMPLE}).encode()
    answer = wire.infer(MODEL, body)
    check_refusal(
        answer,
        400,
        f"request JSON size of {len(body)} bytes exceeds the maximum allowed input size of 67108864 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )
    check_alive(wire)


def test_deep_json(wire: Wire) -> None:
    answer = wire.infer(MODEL, b'{"inputs":' + b"[" * 100_000)
    check_refusal(answer, 400, "JSON nesting depth exceeds maximum allowed limit (100)")
    check_alive(wire)


PATHS = {
    "no such path": ("GET", "/nope", 404, "Not Found"),
    "trailing slash": ("GET", "/v2/", 404, "Not Found"),
    "version that is no number": ("POST", "/v2/models/simple/versions/x/infer", 404, "Not Found"),
    "wrong method": ("GET", "/v2/models/simple/infer", 405, "Method Not Allowed"),
    "unknown model": (
        "GET",
        "/v2/models/nobody/ready",
        404,
        "Request for unknown model: 'nobody' is not found",
    ),
    "unknown version": (
        "GET",
        "/v2/models/simple/versions/9/ready",
        404,
        "Request for unknown model: 'simple' version 9 is not found",
    ),
}


@pytest.mark.parametrize(("method", "path", "status", "text"), PATHS.values(), ids=PATHS.keys())
def test_odd_paths(wire: Wire, method: str, path: str, status: int, text: str) -> None:
    check_refusal(wire.send(method, path), status, text)
    check_alive(wire)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/simple/ready"])
def test_health_has_no_body(wire: Wire, path: str) -> None:
    answer = wire.send("GET", path)
    assert (answer.status, answer.body) == (200, b"")


def test_versioned_path(wire: Wire) -> None:
    answer = wire.send("POST", "/v2/models/simple/versions/1/infer", json.dumps(SIMPLE).encode())
    assert (answer.status, answer.json["model_version"]) == (200, "1")
