"""Responses to requests that the compiled reader has read: the same bytes as Python writes."""

from functools import partial

import pytest

from app.core.errors import unavailable
from app.core.tensors import InferRequest, InferResponse, Tensor, failed
from tests.unit.app.ingress.http_peer import binary_infer
from tests.unit.app.ingress.rest.test_known_requests import AGENT, ARRAY, RECOGNISED
from tests.unit.app.ingress.two_planes import Planes

pytest.importorskip("app.native.extension")


@pytest.fixture(scope="module")
def planes() -> Planes:
    return Planes()


FAILED = failed(unavailable("gone"))
OUTPUT = Tensor("OUTPUT0", "FP32", (1, 16), ARRAY.tobytes())
OTHER = Tensor("OUTPUT1", "INT32", (2,), bytes(8))
RESPONSES: dict[str, list[InferResponse]] = {
    "failure": [FAILED],
    "other outputs": [InferResponse("identity", "1", (OUTPUT, OTHER))],
    "no outputs": [InferResponse("identity", "1")],
    "empty output": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1, 0), b""),))],
    "other version": [InferResponse("identity", "2", (OUTPUT,))],
    "other name": [InferResponse("other", "1", (OUTPUT,))],
    "parameters": [InferResponse("identity", "1", (OUTPUT,), parameters={"a": 1, "b": False, "c": "d"})],
    "greatest number": [InferResponse("identity", "1", (OUTPUT,), parameters={"": 2**64 - 1, "b": True})],
    "negative number": [InferResponse("identity", "1", (OUTPUT,), parameters={"a": True, "b": -1})],
    "fraction": [InferResponse("identity", "1", (OUTPUT,), parameters={"a": 0.5})],
    "text with quotes": [InferResponse("identity", "1", (OUTPUT,), parameters={'"': "\n"})],
    "many parameters": [
        InferResponse("identity", "1", (OUTPUT,), parameters=dict.fromkeys(map(str, range(4000)), 1))
    ],
    "id of its own": [InferResponse("identity", "1", (OUTPUT,), id="mine")],
    "in two": [InferResponse("identity", "1", (OUTPUT,), final=False), InferResponse("identity", "1")],
    "two": [
        InferResponse("identity", "1", (OUTPUT,), final=False),
        InferResponse("identity", "1", (OUTPUT,)),
    ],
    "memoryview": [
        InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1, 16), memoryview(bytes(64))),))
    ],
    "bytearray": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1, 16), bytearray(64)),))],
    "large": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1, 9000), bytes(36000)),))],
    "no text": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP16", (1, 1), bytes(2)),))],
    "wrong size": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1, 16), bytes(60)),))],
    "nine outputs": [InferResponse("identity", "1", (OUTPUT,) * 9)],
    "NaN": [InferResponse("identity", "1", (Tensor("OUTPUT0", "FP32", (1,), b"\0\0\xc0\x7f"),))],
}


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("asked", ["binary", "id", "numbers", "id in JSON"])
def test_responses_of_any_look(planes: Planes, asked: str, response: str) -> None:
    data = RECOGNISED[asked][0]
    planes.learn(data)
    for _ in range(3):
        written, recognised = planes.ask(data, lambda _: RESPONSES[response])
        assert written and recognised
    assert planes.ask(data)[0].startswith(b"HTTP/1.1 200 OK")


def answered(response: InferResponse, _: InferRequest) -> list[InferResponse]:
    return [response]


def test_many_looks_of_responses(planes: Planes) -> None:
    data = binary_infer(ARRAY, AGENT)
    for size in [*range(1, 50), *range(1, 50)]:
        output = Tensor("OUTPUT0", "UINT8", (size,), bytes(size))
        planes.ask(data, partial(answered, InferResponse("identity", "1", (output,))))
