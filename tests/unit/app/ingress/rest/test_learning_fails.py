"""What is learned from requests, and what routes them: it ends no connection, and costs no more than they."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.native import learning
from app.settings.fronts import HttpSettings
from tests.unit.app.ingress.http_peer import INFER, infer_document, request
from tests.unit.app.ingress.two_planes import Plane, Planes

AGENT = "User-Agent: " + "a" * 40
"""Makes a head as long as those of clients are."""
MEMORY = 1 << 20
FAILURES = (MemoryError(), RecursionError("deep"), OverflowError("large"), KeyError("data"), ValueError("no"))


def document(shape: list[int], datatype: str, data: Any) -> bytes:
    entry = {"name": "INPUT0", "shape": shape, "datatype": datatype, "data": data}
    return request(INFER, json.dumps({"inputs": [entry]}).encode(), AGENT)


ANSWER = [InferResponse("identity", "1", (Tensor("OUTPUT0", "INT32", (1,), bytes(4)),))]


def answer(_: InferRequest) -> list[InferResponse]:
    """Answer whatever is asked: whether data fit a shape is for the replica to say."""
    return ANSWER


@pytest.fixture(autouse=True)
def none_told() -> Iterator[None]:
    with patch.object(learning, "_told", set()):
        yield


@pytest.mark.parametrize("elements", [[], ["x"], [["x"], "y"], ["x"] * 100])
@pytest.mark.parametrize(
    "shape",
    [
        *([1, 1 << bits] for bits in (17, 20, 26, 40, 62)),
        *([1, (1 << 63) - 1], [1, 1 << 64], [0, 1 << 62], [1 << 62, 0], [2] * 62, [2] * 80, []),
    ],
)  # fmt: skip
def test_a_shape_is_no_size(shape: list[int], elements: list[Any]) -> None:
    planes = Planes()
    tracemalloc.start()
    try:
        for datatype in ("BYTES", "INT8", "FP64"):
            for _ in range(4):
                planes.ask(document(shape, datatype, elements), answer)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


ASKED = request(INFER, json.dumps(infer_document([1.0, 2.0])).encode(), AGENT)


def ask(plane: Plane) -> bool:
    """Send one more request, see it answered, and return whether it was recognised."""
    ((asked, sink),) = plane.receive(ASKED)
    sink(plane.fake.answer(asked))
    assert plane.taken().startswith(b"HTTP/1.1 200 OK") and not plane.transport.closed
    return type(sink).__name__ == "Matched"


@pytest.mark.parametrize("error", FAILURES, ids=repr)
@pytest.mark.parametrize("step", ["known_requests._Known", "infer.InferRoute.is_plain"])
def test_a_request_that_cannot_be_learned_is_answered(
    step: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("app.native.extension")
    plane = Plane("native", HttpSettings())
    with patch(f"app.ingress.rest.{step}", side_effect=error):
        assert [ask(plane) for _ in range(4)] == [False] * 4
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
    assert [ask(plane) for _ in range(3)][-1]


@pytest.mark.parametrize("error", FAILURES, ids=repr)
@pytest.mark.parametrize("data_plane", ["python", "native"])
def test_a_head_that_cannot_be_routed_is_answered(data_plane: str, error: Exception) -> None:
    plane = Plane(data_plane, HttpSettings())
    with patch.object(plane._state, "_route", side_effect=error):
        for _ in range(3):
            assert plane.receive(ASKED) == []
            assert plane.taken().startswith(b"HTTP/1.1 500 Internal Server Error")
            assert not plane.transport.closed
    assert not ask(plane)


@pytest.mark.parametrize("data_plane", ["python", "native"])
def test_a_head_without_a_prefix_that_cannot_be_told_is_answered(data_plane: str) -> None:
    plane = Plane(data_plane, HttpSettings())
    with patch("app.protocol.http.http1.RequestHead.without", side_effect=KeyError("path")):
        assert plane.receive(ASKED) == []
        assert plane.taken().startswith(b"HTTP/1.1 500 Internal Server Error") and not plane.transport.closed
    assert not ask(plane)


CHUNKED = b"POST %s HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n" % INFER.encode()


@pytest.mark.parametrize("error", FAILURES, ids=repr)
@pytest.mark.parametrize(
    ("step", "asked"), [("connection.parse_head", ASKED), ("body.ChunkedBody.feed", CHUNKED)]
)
@pytest.mark.parametrize("data_plane", ["python", "native"])
def test_a_request_that_cannot_be_read_is_answered(
    data_plane: str, step: str, asked: bytes, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    plane = Plane(data_plane, HttpSettings())
    with patch(f"app.ingress.http1.{step}", side_effect=error):
        assert plane.receive(asked) == []
    taken = plane.taken()
    assert taken.startswith(b"HTTP/1.1 500 Internal Server Error") and b"Connection: close" in taken
    assert b'{"error":"unexpected error, the request could not be answered"}' in taken
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
    assert plane.receive(ASKED) == [] and not plane.taken(), "the next one's begin is not known"
