"""Every HTTP request that two servers should answer alike, by name."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.peer.http_extensions import EXTENSIONS
from tests.peer.http_inference import INFERENCE
from tests.peer.http_requests import ROW, Request, first_input, infer, sums, tensor

PATHS = [
    "/",
    "/v2",
    "/v2/",
    "//v2",
    "/v2?x=1",
    "/v1",
    "/v2/health",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/health/ready/",
    "/v2/health/other",
    "/v2/models",
    "/v2/models/",
    "/v2/models/sums",
    "/v2/models/sums/",
    "/v2/models/nobody",
    "/v2/models/s%75ms",
    "/v2/models/sums/versions/1",
    "/v2/models/sums/versions/9",
    "/v2/models/sums/versions/0",
    "/v2/models/sums/versions/01",
    "/v2/models/sums/versions/x",
    "/v2/models/sums/versions/-1",
    "/v2/models/sums/versions/1.0",
    "/v2/models/sums/versions/",
    "/v2/models/sums/versions/99999999999999999999",
    "/v2/models/sums/versions",
    "/v2/models/sums/ready",
    "/v2/models/nobody/ready",
    "/v2/models/sums/versions/9/ready",
    "/v2/models/sums/config",
    "/v2/models/adder/config",
    "/v2/models/types/config",
    "/v2/models/square_int32/config",
    "/v2/models/sums/versions/1/config",
    "/v2/models/nobody/config",
    "/v2/models/sums/versions/9/config",
    "/v2/models/nobody/stats",
    "/v2/models/sums/versions/9/stats",
    "/v2/models/types",
    "/v2/models/adder",
    "/v2/models/plain",
    "/v2/models/sums/infer",
    "/v2/models/sums/generate",
    "/v2/models/sums/trace/setting",
    "/v2/models/nobody/trace/setting",
    "/v2/models/sums/versions/1/trace/setting",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/repository/index",
    "/v2/repository/models/sums/load",
    "/v2/systemsharedmemory",
    "/v2/systemsharedmemory/status",
    "/v2/systemsharedmemory/region/r/status",
    "/v2/cudasharedmemory/status",
    "/v2/cudasharedmemory/region/r/status",
    "/metrics",
    "/favicon.ico",
]

# A field of a request and what does not belong there.
STRINGS: list[object] = [
    "",
    "a",
    "é",
    "\x00",
    '"\\/\b\f\n\r\t',
    "\x7f",
    "\u2028",
    "\U0001f600",
    1,
    None,
    [],
    {},
]
ODD: list[object] = [None, True, 1, -1, 1.5, "x", "", [], {}, [None], [[]], 2**64]


def odd_fields() -> Iterator[tuple[str, Request]]:
    """Each field of a request with values of every JSON type."""
    for (field, change), value in itertools.product(FIELDS.items(), ODD):
        yield f"{field} = {json.dumps(value)}", infer("sums", change(value))


FIELDS: dict[str, Any] = {
    "body": lambda value: json.dumps(value).encode(),
    "id": lambda value: sums(id=value),
    "inputs": lambda value: {"inputs": value},
    "input": lambda value: {"inputs": [value, sums()["inputs"][1]]},
    "name": lambda value: first_input(name=value),
    "shape": lambda value: first_input(shape=value),
    "dimension": lambda value: first_input(shape=[value, 16]),
    "datatype": lambda value: first_input(datatype=value),
    "data": lambda value: first_input(data=value),
    "element": lambda value: first_input(data=[value, *ROW[1:]]),
    "input parameters": lambda value: first_input(parameters=value),
    "binary_data_size": lambda value: first_input(parameters={"binary_data_size": value}),
    "size without data": lambda value: first_input(data=..., parameters={"binary_data_size": value}),
    "shared_memory_region": lambda value: first_input(data=..., parameters={"shared_memory_region": value}),
    "shared_memory_byte_size": lambda value: first_input(
        data=..., parameters={"shared_memory_region": "r", "shared_memory_byte_size": value}
    ),
    "outputs": lambda value: sums(outputs=value),
    "output": lambda value: sums(outputs=[value]),
    "output name": lambda value: sums(outputs=[{"name": value}]),
    "output parameters": lambda value: sums(outputs=[{"name": "OUTPUT0", "parameters": value}]),
    **{
        f"output {key}": lambda value, key=key: sums(
            outputs=[{"name": "OUTPUT0", "parameters": {key: value}}]
        )
        for key in ("binary_data", "classification", "shared_memory_region", "mine")
    },
    "parameters": lambda value: sums(parameters=value),
    **{
        f"parameter {key}": lambda value, key=key: sums(parameters={key: value})
        for key in (
            "sequence_id",
            "sequence_start",
            "sequence_end",
            "priority",
            "timeout",
            "binary_data_output",
            "mine",
            "triton_mine",
            "headers",
        )
    },
}

TEXTS = [
    b"",
    b" ",
    b"{",
    b"[",
    b"nul",
    b"{}",
    b"{]",
    b'{"inputs"}',
    b'{"inputs":}',
    b'{"inputs":[}',
    b'{"inputs":[],}',
    b'{"inputs":[]}x',
    b'{"inputs":[]} ',
    b"{'inputs':[]}",
    b"{inputs:[]}",
    b'{"inputs":[{"name":"a}]}',
    b'{"inputs":[{"name":"\\q"}]}',
    b'{"inputs":[{"name":"\\u12"}]}',
    b'{"inputs":[{"name":"\\ud800"}]}',
    b'{"inputs":[{"name":"\xff"}]}',
    b'{"inputs":[{"name":"\t"}]}',
    b'{"inputs":[01]}',
    b'{"inputs":[1.]}',
    b'{"inputs":[.5]}',
    b'{"inputs":[1e]}',
    b'{"inputs":[-]}',
    b'{"inputs":[+1]}',
    b'{"inputs":[1e999]}',
    b'{"inputs":[nan]}',
    b'{"inputs":[Inf]}',
    b'{"inputs":[tru]}',
    b"/**/{}",
    b"\xef\xbb\xbf{}",
    b"\x00",
    b'"a"',
    b'{"inputs":' + b"[" * 20 + b"]" * 20 + b"}",
    b'{"inputs":1,"inputs":[]}',
]


def element(datatype: str, *data: Any) -> Request:
    body = {"inputs": [tensor(f"INPUT_{datatype}", datatype, [1, len(data)], data=list(data))]}
    return infer("types", body | {"outputs": [{"name": f"OUTPUT_{datatype}"}]})


def elements() -> Iterator[tuple[str, Request]]:
    """Values at and beyond the edge of each data type, as JSON."""
    integers = [0, 1, -1, 127, 128, -129, 255, 256, 65536, 2**31, -(2**31) - 1, 2**32, 2**63, -(2**63), 2**64]
    for datatype in ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"):
        for value in (*integers, 1.0, 1.5, True, None, "1"):
            yield f"{datatype} {value!r}", element(datatype, value)
    for value in (True, False, 0, 1, "true", None):
        yield f"BOOL {value!r}", element("BOOL", value)
    for value in (
        0,
        1,
        -1,
        0.1,
        1e-7,
        1e16,
        1e17,
        1e21,
        1e22,
        123456789,
        1e38,
        1e39,
        5e-324,
        1.7e308,
        True,
        "1",
        None,
    ):
        yield f"FP32 {value!r}", element("FP32", value)
        yield f"FP64 {value!r}", element("FP64", value)
    for value in (float("nan"), float("inf"), float("-inf")):
        yield f"FP32 {value}", element("FP32", value)
    for text in STRINGS:
        yield f"BYTES {text!r}", element("BYTES", text)
    yield "FP16 1", element("FP16", 1)


def table() -> dict[str, Request]:
    """Every request by name, in the order to send them in."""
    requests = {f"{method} {path}": Request(method, path) for path in PATHS for method in ("GET", "POST")}
    for method in ("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
        requests |= {
            f"{method} {path}": Request(method, path) for path in ("/v2", "/v2/models/sums/infer", "/x")
        }
    for path in [
        name for name in requests if name.startswith("POST") and ("/load" in name or "/unload" in name)
    ]:
        del requests[path]
    requests |= {f"text {text[:40]!r}": infer("sums", text) for text in TEXTS}
    requests |= dict(odd_fields()) | dict(elements())
    return requests | INFERENCE | EXTENSIONS
