"""Requests that are in flight while their model is unloaded, over both fronts."""

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client

from app.core.tensors import InferResponse, Tensor
from app.dispatch.router import Router
from app.ingress.service.routed import RoutedInferenceService
from app.routing.table import ModelState, RoutingTable
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts
from tests.unit.app.routing_fakes import SETTINGS, FakeRepository, FakeRouter, entry
from tests.waiting import block_until

UNLOADED = entry("m", state=ModelState.UNAVAILABLE, reason="unloaded")
CLASSES = [[b"3.000000:1:dog", b"2.000000:0:cat"]]


def unary_infer(client: Any, given: Any, wanted: Any) -> Any:
    return client.infer("m", [given], outputs=[wanted])


def grpc_stream_infer(client: Any, given: Any, wanted: Any) -> Any:
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.start_stream(lambda result, error: results.put(error or result))
    client.async_stream_infer("m", [given], outputs=[wanted])
    return results.get(timeout=WAIT_S)


KINDS = {
    "http": (http_client, unary_infer),
    "grpc": (grpc_client, unary_infer),
    "stream": (grpc_client, grpc_stream_infer),
}


@pytest.mark.parametrize("kind", KINDS)
def test_classification_succeeds_when_the_model_is_unloaded_meanwhile(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    router = FakeRouter(entry("m", labels={"OUTPUT0": ("cat", "dog")}))
    resolved = count_resolves(monkeypatch)
    module, infer = KINDS[kind]
    with (
        fronts(service=RoutedInferenceService(SETTINGS, cast(Router, router), FakeRepository())) as running,
        module.InferenceServerClient(running.http if kind == "http" else running.grpc) as client,
        ThreadPoolExecutor() as caller,
    ):
        given = module.InferInput("INPUT0", [1, 16], "FP32")
        given.set_data_from_numpy(np.zeros((1, 16), np.float32))
        answer = caller.submit(infer, client, given, module.InferRequestedOutput("OUTPUT0", class_count=2))
        block_until(lambda: router.sinks, timeout=WAIT_S)
        router.table = RoutingTable(2, True, (UNLOADED,))
        output = Tensor.from_array("OUTPUT0", np.array([[2, 3]], np.float32))
        running.loop.loop.call_soon_threadsafe(router.sinks[0], InferResponse("m", "1", (output,)))
        assert answer.result(WAIT_S).as_numpy("OUTPUT0").tolist() == CLASSES
    assert resolved == ["m"], "a request is resolved once"


def count_resolves(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a list to which the names of resolved models are appended."""
    resolved = []
    resolve = RoutingTable.resolve

    def counted(table: Any, name: str, version: str = "") -> Any:
        resolved.append(name)
        return resolve(table, name, version)

    monkeypatch.setattr(RoutingTable, "resolve", counted)
    return resolved
