"""An HTTP request as a value, and how to build those that the tables hold."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.contract.wire import JSON_LENGTH


class Request(NamedTuple):
    """One request; a body that is no bytes is sent as JSON."""

    method: str
    path: str
    body: Any = b""
    headers: Mapping[str, str] = {}

    @property
    def content(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


ROW = list(range(16))
WIRE_ROW = b"".join(n.to_bytes(4, "little") for n in ROW)


def tensor(name: str, datatype: str, shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, **fields}


def sums(**fields: Any) -> dict[str, Any]:
    """A correct request to `sums`; `fields` are added."""
    inputs = [tensor(f"INPUT{i}", "INT32", [1, 16], data=ROW) for i in range(2)]
    return {"inputs": inputs, **fields}


def first_input(**fields: Any) -> dict[str, Any]:
    """A request to `sums` whose first input is changed; ... removes a field."""
    body = sums()
    body["inputs"][0] = {k: v for k, v in (body["inputs"][0] | fields).items() if v is not ...}
    return body


def binary(*sizes: Any) -> dict[str, Any]:
    """A request to `sums` that announces binary data of these sizes."""
    inputs = [
        tensor(f"INPUT{i}", "INT32", [1, 16], parameters={"binary_data_size": size})
        for i, size in enumerate(sizes)
    ]
    return {"inputs": inputs}


def infer(model: str, body: Any, **headers: str) -> Request:
    return Request("POST", f"/v2/models/{model}/infer", body, headers)


def with_binary(body: Any, data: bytes, length: object = None, model: str = "sums") -> Request:
    """JSON and binary data; `length` is announced instead of the length of the JSON part."""
    head = body if isinstance(body, bytes) else json.dumps(body).encode()
    announced = str(len(head) if length is None else length)
    return Request("POST", f"/v2/models/{model}/infer", head + data, {JSON_LENGTH: announced})


def chosen(*outputs: dict[str, Any]) -> Request:
    return infer("sums", sums(outputs=list(outputs)))


def generate(model: str, body: Any, stream: bool = False, **headers: str) -> Request:
    return Request("POST", f"/v2/models/{model}/generate{'_stream' if stream else ''}", body, headers)


def load(model: str, body: Any = b"") -> Request:
    return Request("POST", f"/v2/repository/models/{model}/load", body)


def sequence(identity: Any, start: bool, end: bool, value: int = 1) -> Request:
    parameters = {"sequence_id": identity, "sequence_start": start, "sequence_end": end}
    inputs = [tensor("INPUT", "INT32", [1, 1], data=[value])]
    return infer("adder", {"inputs": inputs, "parameters": parameters})


def region(action: str, body: Any = b"", name: str = "/region/r", kind: str = "system") -> Request:
    return Request("POST", f"/v2/{kind}sharedmemory{name}/{action}", body)


def one(name: str, datatype: str, shape: list[int], **fields: Any) -> dict[str, Any]:
    return {"inputs": [tensor(name, datatype, shape, **fields)]}
