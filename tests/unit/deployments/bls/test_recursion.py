"""A Python model that calls itself: real processes and schedulers behind a router that knows it alone."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.core import inference
from app.core.tensors import InferRequest
from app.routing.table import ModelState, VersionEntry
from backends.python.api import server_api
from deployments.bls.cluster import Cluster
from deployments.bls.service import Connection, ModelCalls
from deployments.spec import ModelSpec
from tests.unit.composed import Composed
from tests.unit.deployments.served_model_bench import CONFIG, Bench, request

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request, int(request.request_id())) for request in requests]

    def answer(self, request, depth):
        if not depth:
            output = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
            return pb_utils.InferenceResponse([output])
        call = pb_utils.InferenceRequest(str(depth - 1), 0, request.inputs(), ["OUTPUT0"], "m")
        return call.exec()
"""
FOUR = 'instance_group [ { name: "g" count: 4 kind: KIND_CPU } ]'


class OneModel(Composed):
    """A router to the model of the bench."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def resolve(self, name: str, version: str) -> VersionEntry:
        model = self._bench.model
        assert model is not None and name == "m"
        found = VersionEntry("m", 1, ModelState.READY, config=model.config.SerializeToString())
        found.compose_by(self)
        return found

    def submit(self, entry: VersionEntry, infer: InferRequest, sink: inference.Sink) -> Any:
        model = self._bench.model
        assert model is not None
        return SimpleNamespace(cancel=model.submit(infer, sink))


def test_a_model_calls_itself_while_an_instance_is_left(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_connection(spec: ModelSpec, cluster: Cluster) -> Connection:
        return Connection(cast(Any, OneModel(bench)), cast(Any, None))

    monkeypatch.setattr(Connection, "open", open_connection)
    config = CONFIG.replace("probe", "python") + FOUR
    monkeypatch.setattr(server_api._Installed, "api", ModelCalls(bench.spec(config), bench.plane))
    (bench.directory / "m" / "1" / "model.py").write_text(MODEL)
    bench.load(config)
    for depth in (0, 3, 3):
        answer = bench.submit(request(str(depth)))[0].result(60)
        assert answer.failure is None and answer.outputs[0].array().tolist() == [[0, 1, 2, 3]]
    failure = bench.submit(request("4"))[0].result(60).failure
    assert failure is not None
    assert failure.message.startswith(
        "circular call of models: m -> m -> m -> m -> m; a model that calls itself"
    )
