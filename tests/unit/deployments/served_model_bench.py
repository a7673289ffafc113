"""Models served by the tests' backend, without a cluster."""

import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import without_instances
from app.core.observability.statistics import ReplicaReport
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.loops.thread import LoopThread
from deployments.replica.control import ReplicaHandler
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.spec import Backends, Limits, Metrics, ModelSpec, Placement, ReplicaSettings
from tests.unit.scheduling_fakes import FakeServeBatch

BACKEND = """
import threading
from tritonclient.grpc import model_config_pb2 as mc
from app.core.errors import internal
from app.core.observability.statistics import ReplicaReport
from app.core.tensors import InferResponse, failed
from backends.base import Backend

calls = []
gate = threading.Event()
entered = threading.Semaphore(0)


class TritonBackend(Backend):
    @classmethod
    def auto_complete(cls, model):
        calls.append("auto_complete")
        config = mc.ModelConfig()
        config.CopyFrom(model.config)
        if not config.input:
            config.max_batch_size = 8
            config.input.add(name="INPUT0", data_type=mc.TYPE_UINT8, dims=[4])
            config.output.add(name="OUTPUT0", data_type=mc.TYPE_UINT8, dims=[4])
        return config

    def initialize(self, config):
        calls.append(("initialize", dict(config)))

    def model_initialize(self, model):
        calls.append("model_initialize")

    def model_finalize(self, model):
        calls.append("model_finalize")

    def finalize(self):
        calls.append("finalize")

    def instance_initialize(self, instance):
        if instance.model.parameter("break") == str(instance.index):
            raise internal("the weights are unreadable")
        calls.append(("load", instance.name, instance.kind, instance.device_id))

    def runs_on_event_loop(self, instance):
        return instance.model.parameter("short") == "true"

    def instance_finalize(self, instance):
        calls.append(("unload", instance.name))

    def instance_execute(self, instance, requests):
        ids = [request.infer.id for request in requests]
        calls.append(("execute", threading.current_thread().name, ids))
        if "hold" in ids:
            entered.release()
            assert gate.wait(60)
        for request in requests:
            if "bad" in request.infer.id or instance.model.parameter("answer") == "error":
                request.deliver(failed(internal("a bad input")))
            else:
                tensor = request.infer.inputs[0]
                request.deliver(InferResponse(outputs=(tensor,), parameters={"seen": len(ids)}))
"""

CONFIG = """
name: "m"
backend: "probe"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_UINT8 dims: [ 4 ] }
"""
BATCHING = "dynamic_batching {}\n"


def model_spec(directory: Path, config: str, **fields: Any) -> ModelSpec:
    """Return the spec of the model in `directory / "m"`, with the backends of `directory / "backends"`."""
    parsed = without_instances(text_format.Parse(config, mc.ModelConfig()))
    return ModelSpec(
        name="m",
        version=1,
        directory=str(directory / "m"),
        config=parsed.SerializeToString(),
        application="m:1",
        fingerprint="",
        key=bytes(32),
        server=replica_settings(
            fields, directory=str(directory / "backends"), config=fields.pop("backend_config", {})
        ),
        **fields,
    )


def replica_settings(fields: dict[str, Any], **more: Any) -> ReplicaSettings:
    """Return the settings of these names, which are taken out of `fields`, in their sections."""
    given = {**fields, **more}
    sections = {"limits": Limits, "backends": Backends, "metrics": Metrics, "placement": Placement}
    names = {field for section in sections.values() for field in section.__struct_fields__}
    names |= set(ReplicaSettings.__struct_fields__)
    for name in names & fields.keys():
        del fields[name]
    plain = {name: given[name] for name in ReplicaSettings.__struct_fields__ if name in given}
    made = {name: msgspec.convert(given, section) for name, section in sections.items()}
    return ReplicaSettings(**made, **plain)


class Bench:
    """Loads models into one data plane, and calls the last one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "backends" / "probe").mkdir(parents=True)
        (directory / "backends" / "probe" / "backend.py").write_text(BACKEND)
        (directory / "m" / "1").mkdir(parents=True)
        self.plane = LoopThread("test-data-plane")
        self.serve_batch = FakeServeBatch()
        self.model: ServedModel | None = None

    def spec(self, config: str = CONFIG, **fields: Any) -> ModelSpec:
        return model_spec(self.directory, config, **fields)

    def load(self, config: str = CONFIG, **fields: Any) -> ServedModel:
        self.model = load_model(self.spec(config, **fields), self.plane, self.serve_batch)
        self.plane.call(self.model.open())
        return self.model

    @property
    def backend(self) -> ModuleType:
        return sys.modules["nereid_backend_probe"]

    def executed(self) -> list[list[str]]:
        return [call[2] for call in self.backend.calls if call[0] == "execute"]

    def submit(self, request: InferRequest) -> "tuple[Future[InferResponse], Callable[[], None]]":
        """Submit on the loop; return a future of the final response and the function that cancels."""
        answer: Future[InferResponse] = Future()
        model = self.model
        assert model is not None

        async def start() -> Callable[[], None]:
            return model.accept(request, answer.set_result)

        cancel = self.plane.call(start(), 60)
        return answer, lambda: self.plane.call(_run(cancel), 60)

    def infer(self, request: InferRequest) -> InferResponse:
        return self.submit(request)[0].result(60)

    def hold(self) -> "Future[InferResponse]":
        """Occupy the instance until the gate opens."""
        answer, _ = self.submit(request("hold"))
        assert self.backend.entered.acquire(timeout=60)
        return answer

    def control(self, verb: str, payload: object = None) -> Any:
        """Call a control verb of the replica."""
        assert self.model is not None
        return self.plane.call(ReplicaHandler(self.model).control(verb, payload), 30)

    def report(self) -> ReplicaReport:
        """Return the statistics of the replica."""
        report: ReplicaReport = self.control("statistics")
        return report

    def close(self) -> None:
        if self.model is not None:
            if "nereid_backend_probe" in sys.modules:
                self.backend.gate.set()
            self.model.close(timeout=60)
        self.plane.stop()
        sys.modules.pop("nereid_backend_probe", None)


async def _run(call: Callable[[], None]) -> None:
    call()


def request(request_id: str, rows: int = 1, **fields: Any) -> InferRequest:
    tensor = Tensor("INPUT0", "UINT8", (rows, 4), bytes(range(4)) * rows)
    return InferRequest("m", "", (tensor,), id=request_id, **fields)
