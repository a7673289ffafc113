"""Failures that tell a client who it should be, or when to come again, over HTTP and gRPC."""

from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest
import tritonclient.grpc

from app.core.errors import ErrorCode, Failure, InferError
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts, infer, refusal

PATHS = {"infer": "/v2/models/identity/infer", "load": "/v2/repository/models/m/load"}
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
REFUSALS = [
    (InferError(ErrorCode.UNAUTHENTICATED, "who?"), 401, {"WWW-Authenticate": "Bearer"}, "UNAUTHENTICATED"),
    (InferError(ErrorCode.PERMISSION_DENIED, "no"), 403, {}, "PERMISSION_DENIED"),
    (
        InferError(ErrorCode.RESOURCE_EXHAUSTED, "later", retry_after_s=1.2),
        429,
        {"Retry-After": "2"},
        "RESOURCE_EXHAUSTED",
    ),
]


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(("error", "status", "headers", "_"), REFUSALS)
def test_http_tells_the_client_what_to_do(
    fronts: Fronts, error: InferError, status: int, headers: dict[str, str], _: str, path: str
) -> None:
    with fronts() as running, closing(HTTPConnection(running.http, timeout=WAIT_S)) as connection:
        running.service.failure = error
        connection.request("POST", path, BODY if path == PATHS["infer"] else b"")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, b'{"error":"%s"}' % str(error).encode())
        found = {name: answer.headers[name] for name in ("WWW-Authenticate", "Retry-After")}
        assert {name: value for name, value in found.items() if value} == headers


@pytest.mark.parametrize(("error", "_", "__", "status"), REFUSALS)
def test_grpc_has_a_status_of_its_own(
    fronts: Fronts, error: InferError, _: int, __: Any, status: str
) -> None:
    with fronts() as running, tritonclient.grpc.InferenceServerClient(running.grpc) as client:
        running.service.failure = error
        for call in (partial(infer, client, tritonclient.grpc), partial(client.load_model, "m")):
            assert refusal(call) == (f"StatusCode.{status}", str(error))


def test_a_failure_keeps_when_to_try_again() -> None:
    failure = Failure(ErrorCode.RESOURCE_EXHAUSTED, "later", retry_after_s=3.5)
    assert failure.error().failure == failure
