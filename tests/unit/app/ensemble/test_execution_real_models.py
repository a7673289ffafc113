"""An ensemble over real models, schedulers and instance threads, in one process."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.routing.table import VersionEntry
from app.transport.loops.thread import LoopThread
from backends.registry.configuration import normalise
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.spec import ModelSpec
from tests.unit.ensembles import Models, ensemble, step
from tests.unit.scheduling_fakes import FakeServeBatch

IDENTITY = """
    backend: "identity" max_batch_size: 4
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
COUNT = 3
CHAIN = ensemble(
    *(step({"INPUT0": f"T{i}"}, {"OUTPUT0": f"T{i + 1}"}, f"m{i}") for i in range(COUNT)),
    inputs="T0",
    outputs=f"T{COUNT}",
    batch=4,
)


class Cancel:
    def __init__(self, cancel: Any) -> None:
        self.cancel = cancel


class RealModels(Models):
    """Sends what is not an ensemble to a served model."""

    def __init__(self, served: dict[str, ServedModel], **configs: str) -> None:
        super().__init__(**configs)
        self.served = served

    def submit(self, found: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if found.ensemble:
            return self.ensembles.start(found, request, sink)
        return Cancel(self.served[found.name].submit(request, sink))


def load(name: str, plane: LoopThread) -> ServedModel:
    config = normalise(text_format.Parse(IDENTITY, mc.ModelConfig(name=name)))
    spec = ModelSpec(name, 1, "", config.SerializeToString(), f"{name}:1", "", bytes(32))
    served = load_model(spec, plane, FakeServeBatch())
    plane.call(served.open())
    return served


@pytest.fixture
def plane() -> Iterator[LoopThread]:
    made = LoopThread("test-plane")
    yield made
    made.stop()


def test_many_requests_through_a_chain(plane: LoopThread) -> None:
    served = {f"m{i}": load(f"m{i}", plane) for i in range(COUNT)}
    models = RealModels(served, e=CHAIN, **dict.fromkeys(served, IDENTITY))

    async def infer(fill: int) -> InferResponse:
        answered: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        tensor = Tensor.from_array("T0", np.full((1 + fill % 4, 4), fill, np.float32))
        request = InferRequest("e", "", (tensor,), id=str(fill))
        models.submit(models.resolve("e"), request, answered.set_result)
        return await answered

    async def many() -> list[InferResponse]:
        return await asyncio.gather(*map(infer, range(50)))

    try:
        for fill, response in enumerate(plane.call(many(), 30)):
            assert response.failure is None and response.id == str(fill)
            (output,) = response.outputs
            assert (output.name, output.shape) == (f"T{COUNT}", (1 + fill % 4, 4))
            assert set(output.array().ravel()) == {fill}
        report = models.ensembles.report(models.resolve("e"))
        assert (report.execution_count, report.failures) == (50, {})
        assert served["m2"].statistics.succeeded == 50
    finally:
        for model in served.values():
            model.close(timeout=60)
