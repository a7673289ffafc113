"""Plain HTTP requests to a front, as the proxy of a platform sends them."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any, NamedTuple

import numpy as np

from tests.unit.app.ingress.http_peer import infer_document
from tests.unit.app.ingress.running_fronts import WAIT_S


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes
    json_length: str = ""

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    """Send one request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        length = response.getheader("Inference-Header-Content-Length", "")
        return Answer(response.status, response.getheader("Content-Type", ""), response.read(), length)
    finally:
        connection.close()


JSON_INFER = json.dumps(infer_document([1, 2])).encode()


def binary_infer(platform: str, array: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with a binary input and output."""
    size = {"binary_data_size": array.nbytes}
    given = {"name": "INPUT0", "shape": list(array.shape), "datatype": "FP32", "parameters": size}
    header = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    kind = f"application/vnd.{platform}-triton.binary+json;json-header-size={len(header)}"
    return header + array.tobytes(), {"Content-Type": kind}


def binary_output(answer: Answer, platform: str = "") -> list[float]:
    """Return the values of the binary output of an answer, in the format of v2 unless of a platform."""
    kind, length = answer.content_type, answer.json_length
    if platform:
        prefix = f"application/vnd.{platform}-triton.binary+json;json-header-size="
        assert kind.startswith(prefix) and not length
        length = kind.removeprefix(prefix)
    else:
        assert kind == "application/octet-stream"
    assert json.loads(answer.body[: int(length)])["outputs"][0]["name"] == "OUTPUT0"
    return [*map(float, np.frombuffer(answer.body[int(length) :], np.float32))]
