"""Compares answers with the expected ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from nereid_client.datatypes import Array
from nereid_client.tools.perf.generator.call import Call
from nereid_client.tools.perf.generator.job import End, Job

_MAX_KNOWN: Final = 64


class Answers:
    """The check of answers: bytes that were right once are right again, others are decoded."""

    def __init__(self, job: Job) -> None:
        self._expected, self._tolerance = job.expected, job.tolerance
        self._streaming = job.endpoint.streaming
        self._outputs = reader(job.endpoint.protocol, self._streaming)
        self._known: list[set[bytes]] = [set() for _ in job.expected]

    def judged(self, call: Call) -> tuple[End, str]:
        """Return how a request ended whose status is that of success."""
        pieces = call.body or []
        body = b"".join(pieces)
        known = self._known[call.index]
        if body in known:
            return End.OK, ""
        try:
            answers = [self._outputs(each) for each in (pieces if self._streaming else [body])]
        except (ValueError, KeyError, IndexError, DecodeError) as error:
            return End.WRONG, f"unreadable answer: {error}"
        if text := self._differs(answers, self._expected[call.index]):
            return End.WRONG, f"wrong answer: {text}"
        if len(known) < _MAX_KNOWN:
            known.add(body)
        return End.OK, ""

    def _differs(
        self, answers: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]]
    ) -> str:
        """Return in what the responses differ from the expected ones; "" if they do not."""
        for place, (answer, want) in enumerate(zip(answers, expected, strict=False)):
            if text := difference(answer, want, self._tolerance):
                return f"response {place}: {text}" if self._streaming else text
        if len(answers) != len(expected):
            return f"{len(answers)} responses, not {len(expected)}"
        return ""


def difference(answer: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float) -> str:
    """Return in what an answer differs from the expected outputs; "" if it does not.

    Args:
        tolerance: relative to each element, and absolute where that is smaller than 1.
    """
    for name, want in expected.items():
        got = answer.get(name)
        if got is None:
            return f"output '{name}' is missing"
        if got.size != want.size:
            return f"output '{name}' has the shape {list(got.shape)}, not {list(want.shape)}"
        got = _typed(got.reshape(want.shape), want.dtype)
        if want.dtype == object or want.dtype == bool:
            equal = got == want
        else:
            equal = np.isclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not np.all(equal):
            place = int(np.argmin(np.asarray(equal).reshape(-1)))
            first, second = got.reshape(-1)[place], want.reshape(-1)[place]
            return f"output '{name}' has {first} at {place}, not {second}"
    return ""


def _typed(got: Array, dtype: Any) -> Array:
    """Return values with the datatype that they should have: those of an event of a stream have none."""
    if got.dtype.kind != "O":
        return got
    if dtype.kind != "O":
        return got.astype(dtype)
    encoded = [item.encode() if isinstance(item, str) else item for item in got.reshape(-1)]
    made = np.empty(got.size, object)
    made[:] = encoded
    return made.reshape(got.shape)


def reader(protocol: str, streaming: bool) -> Callable[[bytes], Mapping[str, Array]]:
    """Return what reads the body of an answer; the imports are done before the load begins."""
    if protocol == "grpc":
        from tritonclient.grpc import service_pb2

        from nereid_client import grpc

        if streaming:
            stream = service_pb2.ModelStreamInferResponse.FromString
            return lambda body: grpc.read_response(stream(body).infer_response).arrays
        return lambda body: grpc.read_response(service_pb2.ModelInferResponse.FromString(body[5:])).arrays
    from nereid_client import http

    if streaming:
        return lambda event: http.read_event(event.removeprefix(b"data: ")).arrays

    def read(body: bytes) -> Mapping[str, Array]:
        # A byte each character, so that the end of the JSON in the text is that in the body.
        _, size = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        return http.read_response(body, size).arrays

    return read
