"""Calls of models to other models over a router that is made up."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from app.core import inference
from app.core.errors import unavailable
from app.core.tensors import InferRequest
from app.routing.manager_client import LoadRequest
from app.routing.table import VersionEntry
from app.transport.loops.thread import LoopThread
from backends.python.api import server_api
from deployments.bls.cluster import Cluster
from deployments.bls.service import Connection, ModelCalls
from deployments.spec import ModelSpec
from tests.unit.ensembles import DECOUPLED, Asked, Models, ensemble, model, step

SPEC = ModelSpec("caller", 1, "", b"", "caller:1", "", bytes(32))


class Loading:
    """The manager's part."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def load(self, asked: LoadRequest) -> None:
        self.asked.append(("load", asked))
        if asked.name == "bad":
            raise unavailable("no")

    async def unload(self, *arguments: Any) -> None:
        self.asked.append(("unload", *arguments))
        if arguments[0] == "caller":  # the manager waits for the model's requests, one of which asks for this
            await asyncio.Event().wait()


class Bench:
    def __init__(self, plane: LoopThread) -> None:
        chain = ensemble(step({"x": "IN"}, {"y": "OUT"}, "m"))
        three = model(more="instance_group [ { kind: KIND_CPU count: 2 }, { gpus: [ 0 ] count: 1 } ]")
        self.models = Models(m=model(), d=model(more=DECOUPLED), e=chain, three=three, caller=model())
        self.loading = Loading()
        self.plane = plane
        self.taken = threading.Event()
        self.answers: list[Callable[[Asked], None]] = []
        submit = self.models.submit

        def answering(found: VersionEntry, request: InferRequest, sink: inference.Sink) -> inference.Call:
            call = submit(found, request, sink)
            if self.answers and self.models.asked:
                asked = self.models.asked.pop(0)
                plane.loop.call_soon(self.answers.pop(0), asked)
            self.taken.set()
            return call

        self.models.submit = answering  # type: ignore[method-assign]


@contextmanager
def open_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Install calls to these models as the interface of the server for the model `caller`."""
    plane = LoopThread("test-plane")
    made = Bench(plane)

    async def open_connection(spec: ModelSpec, cluster: Cluster) -> Connection:
        return Connection(cast(Any, made.models), cast(Any, made.loading))

    monkeypatch.setattr(Connection, "open", open_connection)
    monkeypatch.setattr(server_api._Installed, "api", ModelCalls(SPEC, plane))
    yield made
    plane.stop()
