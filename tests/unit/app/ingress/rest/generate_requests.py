"""Requests to generate and generate_stream, and a decoupled model that the test plays."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.tensors import InferResponse, Tensor
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import fronted, request
from tests.waiting import until

GENERATE = "/v2/models/identity/generate"
STREAM = "/v2/models/identity/generate_stream"
EXACTLY_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates "
    "various number of responses"
)
LAST = InferResponse("identity", "1")
BROKEN = Failure(ErrorCode.INVALID_ARG, "broken", FailureReason.BACKEND)
LATE = Failure(ErrorCode.UNAVAILABLE, "Request timeout expired", FailureReason.REJECTED)
JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"


def asking(path: str = GENERATE, body: bytes = b'{"INPUT0":1}', *headers: str) -> bytes:
    return request(path, body, *headers)


def numbered(number: Any, **fields: Any) -> Any:
    return InferResponse(
        "identity", "1", (Tensor.from_array("N", np.array([number])),), **{"final": False, **fields}
    )


def told(failure: Any, final: bool = True) -> Any:
    """The error of a model that had taken the request."""
    return InferResponse("identity", "1", failure=failure, final=final)


def sized(size: int, **fields: Any) -> Any:
    output = Tensor.from_array("N", np.zeros(size, np.int8))
    return InferResponse("identity", "1", (output,), **{"final": False, **fields})


class Asked:
    """A request that reached the model, to be answered by the test."""

    def __init__(self, service: Any) -> None:
        self.request, self._sink = service.held.pop()
        self.call = service.calls[-1]

    def answer(self, *responses: InferResponse) -> None:
        for response in responses:
            self._sink(response)

    async def cancelled(self) -> None:
        await until(lambda: self.call.cancelled)


@asynccontextmanager
async def decoupled(**limits: Any) -> AsyncIterator[Any]:
    """A front before a decoupled model that the test plays, and a connection."""
    service = FakeService()
    service.hold = True
    service.config.model_transaction_policy.decoupled = True
    async with fronted(service, **limits) as front:
        yield front, await front.connect()


async def asked(front: Any, peer: Any, data: bytes) -> Any:
    await peer.send(data)
    await front.fake.asked()
    return Asked(front.fake)


async def head(peer: Any) -> Any:
    """Return status and headers of a response that comes in chunks."""
    lines = (await peer.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    return int(lines[0].split()[1]), {
        k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:-2])
    }


async def chunk(peer: Any) -> Any:
    size = int(await peer.reader.readuntil(b"\r\n"), 16)
    return (await peer.reader.readexactly(size + 2))[:-2]


async def events(peer: Any) -> Any:
    """Return the documents of the chunks until the end, one event in each."""
    found = []
    while data := await chunk(peer):
        assert data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2
        found.append(json.loads(data[6:-2]))
    return found


def numbers(documents: Any) -> Any:
    return [document["N"] for document in documents]
