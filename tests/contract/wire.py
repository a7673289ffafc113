"""HTTP as bytes: what tritonclient cannot or will not send."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.hints import tritons

JSON_LENGTH = "Inference-Header-Content-Length"
TIMEOUT_S = 30.0

SIMPLE = {
    "inputs": [
        {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": list(range(16))},
        {"name": "INPUT1", "shape": [1, 16], "datatype": "INT32", "data": [1] * 16},
    ]
}
BATCH = bytes(64)
MODEL = "simple"


class Answer(NamedTuple):
    """A response; `json` and `binary` are the two parts of its body."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json_length(self) -> int:
        return int(self.headers.get(JSON_LENGTH, len(self.body)))

    @property
    def json(self) -> Any:
        return json.loads(self.body[: self.json_length])

    @property
    def binary(self) -> bytes:
        return self.body[self.json_length :]


class Wire:
    """One keep-alive connection."""

    def __init__(self, address: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S)
        self._connection.connect()
        self._socket = self._connection.sock

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        self._connection.request(method, path, body, dict(headers or {}))
        response = self._connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    def infer(self, model: str, body: Any, binary: bytes | None = None, json_length: object = None) -> Answer:
        """POST an inference request; JSON values are serialised, bytes are sent as they are.

        `binary` follows the JSON, whose length is then announced; `json_length` announces another.
        """
        head = body if isinstance(body, bytes) else json.dumps(body).encode()
        if json_length is None and binary is not None:
            json_length = len(head)
        headers = {} if json_length is None else {JSON_LENGTH: str(json_length)}
        return self.send("POST", f"/v2/models/{model}/infer", head + (binary or b""), headers)

    def is_same_connection(self) -> bool:
        """Whether the connection was never closed and opened again."""
        return self._connection.sock is self._socket

    def close(self) -> None:
        self._connection.close()


def check_alive(wire: Wire) -> None:
    """The same connection serves a correct request."""
    answer = wire.infer(MODEL, SIMPLE)
    assert answer.status == 200
    assert answer.json["outputs"][0]["data"] == list(range(1, 17))
    assert wire.is_same_connection()


def check_refusal(answer: Answer, status: int, text: str) -> None:
    """An error body is `{"error": text}` and nothing else, but for a hint behind the text."""
    assert list(answer.json) == ["error"]
    assert (answer.status, tritons(answer.json["error"])) == (status, text.rstrip())
    assert answer.headers["Content-Type"] == "application/json"


def binary_request(first: int = 64, second: int = 64) -> dict[str, Any]:
    """Both inputs of `simple` announced in binary."""
    sizes = (first, second)
    return {
        "inputs": [
            {
                "name": f"INPUT{i}",
                "shape": [1, 16],
                "datatype": "INT32",
                "parameters": {"binary_data_size": size},
            }
            for i, size in enumerate(sizes)
        ]
    }
