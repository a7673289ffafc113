"""The models of `benchmarks.ensembles`, each in a process of its own, and how they are reached."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.normalise import normalise
from app.core.inference import Call, Cancel, Sink
from app.core.tensors import InferRequest
from app.ensemble.runner import EnsembleRunner
from app.routing.router import Ensembles
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer, Reply
from app.transport.event_loop_thread import LoopThread, freeze_heap
from backends.python.api import server_api
from deployments.bls.service import Connection, ModelCalls
from deployments.replica.loading import load_model
from deployments.replica.served_model import ServedModel
from deployments.scheduling.dynamic.serve_batch import without_serve
from deployments.spec import ModelSpec

KEY: Final = b"a key for a benchmark"
STEPS: Final = 5
BLS_STEPS: Final = 3
"""Of every BLS model, and of the ensemble that it is compared to."""
_STEP = """step {{ model_name: "step{0}" model_version: -1
input_map {{ key: "INPUT0" value: "{1}" }} output_map {{ key: "OUTPUT0" value: "{2}" }} }}"""
_MODEL = f"""
import triton_python_backend_utils as pb_utils

def call(number, tensor):
    return pb_utils.InferenceRequest(
        model_name=f"step{{number}}",
        inputs=[pb_utils.Tensor.from_dlpack("INPUT0", tensor) if number else tensor],
        requested_output_names=["OUTPUT0"],
    )

def output(response):
    if response.has_error():
        raise pb_utils.TritonModelException(response.error().message())
    return response.output_tensors()[0]

STEPS = range({BLS_STEPS})

class TritonPythonModel:
"""
SOURCES: Final = {
    "bls": f"""{_MODEL}
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        (tensor,) = request.inputs()
        for number in STEPS:
            tensor = output(call(number, tensor).exec())
        return pb_utils.InferenceResponse([tensor])
""",
    "bls_await": f"""{_MODEL}
    async def execute(self, requests):
        return [await self._respond(request) for request in requests]

    async def _respond(self, request):
        (tensor,) = request.inputs()
        for number in STEPS:
            tensor = output(await call(number, tensor).async_exec())
        return pb_utils.InferenceResponse([tensor])
""",
    "bls_gather": f"""import asyncio{_MODEL}
    async def execute(self, requests):
        return [await self._respond(request) for request in requests]

    async def _respond(self, request):
        (tensor,) = request.inputs()
        responses = await asyncio.gather(*[call(number, tensor).async_exec() for number in STEPS])
        outputs = [pb_utils.Tensor.from_dlpack(f"OUTPUT{{i}}", output(r)) for i, r in enumerate(responses)]
        return pb_utils.InferenceResponse(outputs)
""",
}
BLS_MODELS: Final = tuple(SOURCES)
MODELS: Final = (*(f"step{i}" for i in range(STEPS)), *BLS_MODELS)


def config(name: str) -> mc.ModelConfig:
    """Return the configuration of a single model; "bls_gather" has an output for each of its calls."""
    backend = "python" if name in SOURCES else "identity"
    outputs = BLS_STEPS if name == "bls_gather" else 1
    return normalise(_parsed(name, outputs, f'backend: "{backend}"'))


def _parsed(name: str, outputs: int, more: str) -> mc.ModelConfig:
    tensor = '{{ name: "{}" data_type: TYPE_FP32 dims: [ -1 ] }}'
    ios = [
        f"input {tensor.format('INPUT0')}",
        *(f"output {tensor.format(f'OUTPUT{i}')}" for i in range(outputs)),
    ]
    text = f"max_batch_size: 8 {' '.join(ios)} {more}"
    return text_format.Parse(text, mc.ModelConfig(name=name))


def chain(count: int) -> mc.ModelConfig:
    """Return an ensemble of identity steps, each of which reads the output of the step before."""
    tensors = ["INPUT0", *(f"between{i}" for i in range(1, count)), "OUTPUT0"]
    steps = "".join(_STEP.format(i, tensors[i], tensors[i + 1]) for i in range(count))
    return _parsed(f"ensemble{count}", 1, f'platform: "ensemble" ensemble_scheduling {{ {steps} }}')


def fan() -> mc.ModelConfig:
    """Return an ensemble of identity steps that all read its input and run at the same time."""
    steps = "".join(_STEP.format(i, "INPUT0", f"OUTPUT{i}") for i in range(BLS_STEPS))
    return _parsed("fan", BLS_STEPS, f'platform: "ensemble" ensemble_scheduling {{ {steps} }}')


def table() -> RoutingTable:
    """Return a routing table with every model and ensemble, all ready."""
    ready = ModelState.READY
    models = [VersionEntry(name, 1, ready, application=name, config=_bytes(config(name))) for name in MODELS]
    ensembles = [
        VersionEntry(each.name, 1, ready, config=_bytes(each)) for each in (*map(chain, (1, 3, 5)), fan())
    ]
    return RoutingTable(1, True, (*models, *ensembles))


def _bytes(message: mc.ModelConfig) -> bytes:
    return bytes(message.SerializeToString())


class Costs(NamedTuple):
    """Tensors written to arenas, by the ingress and by the replicas, and seconds of CPU."""

    ingress: float
    replicas: float
    cpu_s: float


class Fleet:
    """Router of this process: one channel a model; ensembles run here."""

    def __init__(self, channels: dict[str, Channel]) -> None:
        self.channels = channels
        self.table = table()
        self.ensembles: Ensembles = EnsembleRunner(self)

    @classmethod
    async def connect(cls, directory: Path, models: Sequence[str]) -> Fleet:
        address = f"unix:{directory}/{{}}.sock"
        return cls({model: await Channel.connect(address.format(model), KEY) for model in models})

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self.table.resolve(name, version)

    def available(self, entry: VersionEntry) -> bool:
        return True

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        if entry.ensemble:
            return self.ensembles.submit(entry, request, sink)
        return self.channels[request.model_name].submit(request, sink)

    def copies(self) -> int:
        """Tensors that this process has written to arenas."""
        return sum(channel.arena.allocations for channel in self.channels.values() if channel.arena)

    async def costs(self) -> Costs:
        """Return the costs of all requests so far."""
        replicas = [await channel.control("costs") for channel in self.channels.values()]
        copies, seconds = (sum(column) for column in zip(*replicas, strict=True))
        return Costs(self.copies(), copies, time.process_time() + seconds)


class Replica:
    """Served model that also reports how many tensors it has written."""

    def __init__(self, model: ServedModel, fleet: Fleet | None) -> None:
        self._model = model
        self._fleet = fleet
        self.server = ChannelServer(self, KEY)

    def submit(self, request: InferRequest, reply: Reply) -> Cancel:
        return self._model.submit(request, reply)

    async def control(self, verb: str, payload: Any) -> tuple[int, float]:
        written = sum(each.arena.allocations for each in self.server.connections if each.arena)
        return written + (self._fleet.copies() if self._fleet else 0), time.process_time()


class Calls(ModelCalls):
    """BLS over a fleet instead of a cluster."""

    def __init__(self, spec: ModelSpec, plane: LoopThread, fleet: Fleet) -> None:
        super().__init__(spec, plane)
        self._made = Connection(cast(Any, fleet), cast(Any, None))

    async def _connection(self) -> Connection:
        return self._made

    def _opened(self) -> Connection:
        return self._made


def serve(directory: Path, name: str, pipe: Pipe) -> None:
    """Run a replica until the parent closes the pipe."""
    plane = LoopThread("data-plane")
    (directory / name / "1").mkdir(parents=True)
    (directory / name / "1" / "model.py").write_text(SOURCES.get(name, ""))
    spec = ModelSpec(name, 1, str(directory / name), config(name).SerializeToString(), name, "", KEY, "")
    fleet = None
    if name in SOURCES:
        fleet = plane.call(Fleet.connect(directory, MODELS[:BLS_STEPS]))
        server_api.install(Calls(spec, plane, fleet))
    model = load_model(spec, plane, without_serve)
    plane.call(model.open())
    freeze_heap()
    replica = Replica(model, fleet)
    plane.call(replica.server.listen(f"{directory}/{name}.sock"))
    pipe.send(None)
    pipe.poll(None)


def start(directory: Path, name: str) -> Pipe:
    """Start a replica and wait until it listens; it ends when the pipe is closed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(directory, name, theirs), daemon=True).start()
    theirs.close()
    ours.recv()
    return ours
