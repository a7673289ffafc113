"""What composition costs on 600 KB tensors: ensembles of 1, 3 and 5 identity steps, and BLS; no cluster.

python -m benchmarks.ensembles

Each step is a served model in a process of its own, reached over a channel as from an ingress; this
process is the ingress, without its fronts. `direct` is one request to one step, what the ratios are to. The
BLS model calls its steps one after the other. "copies" are tensors written to an arena for each request, by
the ingress and by the replicas: how often the tensor's bytes moved. CPU is that of all processes together.
Rounds alternate; a ratio is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import uvloop
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config_normalise import normalise
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ensemble.runner import EnsembleRunner
from app.routing.router import Call, Sink
from app.routing.table import ModelState, RoutingTable, VersionEntry
from app.transport.client import Channel
from app.transport.loop import LoopThread
from app.transport.server import Cancel, ChannelServer, Reply
from backends.python import services
from benchmarks.batching import without_serve
from deployments.bls import Connection, ModelCalls
from deployments.served_model import ServedModel
from deployments.spec import ModelSpec

KEY = b"a key for a benchmark"
ELEMENTS = 150_000
STEPS = 5
BLS_STEPS = 3
SIDES = ("step0", "ensemble1", "ensemble3", "ensemble5", "bls")
IDENTITY = """
backend: "{backend}" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
"""
STEP = """step {{ model_name: "step{0}" model_version: -1
input_map {{ key: "INPUT0" value: "{1}" }} output_map {{ key: "OUTPUT0" value: "{2}" }} }}"""
BLS = f"""
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        (tensor,) = request.inputs()
        for number in range({BLS_STEPS}):
            call = pb_utils.InferenceRequest(
                model_name=f"step{{number}}",
                inputs=[pb_utils.Tensor.from_dlpack("INPUT0", tensor)] if number else [tensor],
                requested_output_names=["OUTPUT0"],
            )
            response = call.exec()
            if response.has_error():
                return response
            (tensor,) = response.output_tensors()
        return pb_utils.InferenceResponse([tensor])
"""


def config(name: str, backend: str) -> mc.ModelConfig:
    return normalise(text_format.Parse(IDENTITY.format(backend=backend), mc.ModelConfig(name=name)))


def chain(count: int) -> mc.ModelConfig:
    """An ensemble of identity steps."""
    tensors = ["INPUT0", *(f"between{i}" for i in range(1, count)), "OUTPUT0"]
    steps = "".join(STEP.format(i, tensors[i], tensors[i + 1]) for i in range(count))
    text = IDENTITY.format(backend="") + f'platform: "ensemble" ensemble_scheduling {{ {steps} }}'
    return text_format.Parse(text, mc.ModelConfig(name=f"ensemble{count}"))


def table() -> RoutingTable:
    """Steps, ensembles and the BLS model, all ready."""
    configs = [config(f"step{i}", "identity") for i in range(STEPS)]
    configs += [config("bls", "python"), *map(chain, (1, 3, 5))]
    entries = tuple(
        VersionEntry(each.name, 1, ModelState.READY, application=each.name, config=each.SerializeToString())
        for each in configs
    )
    return RoutingTable(1, True, entries)


class Costs(NamedTuple):
    """Tensors written to arenas, by the ingress and by the replicas, and seconds of CPU."""

    ingress: float
    replicas: float
    cpu_s: float


class Fleet:
    """Routes to one channel a model, and runs ensembles here."""

    def __init__(self, channels: dict[str, Channel]) -> None:
        self.channels = channels
        self._table = table()
        self._runner = EnsembleRunner(self)

    @classmethod
    async def connect(cls, directory: Path, models: Sequence[str]) -> Fleet:
        address = f"unix:{directory}/{{}}.sock"
        return cls({model: await Channel.connect(address.format(model), KEY) for model in models})

    def resolve(self, name: str, version: str = "") -> VersionEntry:
        return self._table.resolve(name, version)

    def available(self, entry: VersionEntry) -> bool:
        return True

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        entry = self.resolve(request.model_name)
        if entry.ensemble:
            return self._runner.submit(entry, request, sink)
        return self.channels[request.model_name].submit(request, sink)

    def copies(self) -> int:
        """Tensors that this process has written to arenas."""
        return sum(channel.arena.allocations for channel in self.channels.values() if channel.arena)

    async def costs(self) -> Costs:
        """What all requests so far have cost."""
        replicas = [await channel.control("costs") for channel in self.channels.values()]
        copies, seconds = (sum(column) for column in zip(*replicas, strict=True))
        return Costs(self.copies(), copies, time.process_time() + seconds)


class Replica:
    """A served model that also tells how many tensors it has written."""

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
    """A replica's process; ends when the parent hangs up."""
    plane = LoopThread("data-plane")
    declared = config(name, "python" if name == "bls" else "identity")
    (directory / name / "1").mkdir(parents=True)
    (directory / name / "1" / "model.py").write_text(BLS)
    spec = ModelSpec(name, 1, str(directory / name), declared.SerializeToString(), name, "", KEY, "")
    fleet = None
    if name == "bls":
        fleet = plane.call(Fleet.connect(directory, [f"step{i}" for i in range(BLS_STEPS)]))
        services.install(Calls(spec, plane, fleet))
    model = ServedModel.load(spec, plane, without_serve)
    plane.call(model.open())
    replica = Replica(model, fleet)
    plane.call(replica.server.listen(f"{directory}/{name}.sock"))
    pipe.send(None)
    pipe.poll(None)


class Result(NamedTuple):
    """One side in one round."""

    per_second: float
    ingress_copies: float
    replica_copies: float
    cpu_ms: float


async def measure(fleet: Fleet, model: str, callers: int, seconds: float) -> Result:
    """Load one model with `callers` callers that have one request in flight each."""
    loop = asyncio.get_running_loop()
    data = np.ones((1, ELEMENTS), np.float32)
    request = InferRequest(model, "", (Tensor.of("INPUT0", data),))
    end = loop.time() + seconds

    async def call() -> int:
        done = 0
        while loop.time() < end:
            answer: asyncio.Future[InferResponse] = loop.create_future()
            fleet.submit(request, answer.set_result)
            response = await answer
            if response.error is not None:
                raise response.error
            done += 1
        return done

    before, began = await fleet.costs(), time.monotonic()
    done = sum(await asyncio.gather(*(call() for _ in range(callers))))
    rate = done / (time.monotonic() - began)
    spent = [(now - then) / done for now, then in zip(await fleet.costs(), before, strict=True)]
    return Result(rate, spent[0], spent[1], spent[2] * 1000)


async def compare(directory: Path, models: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print a line a side."""
    fleet = await Fleet.connect(directory, models)
    for callers in arguments.callers:
        sides = SIDES if callers == 1 else SIDES[:-1]  # a Python model is called once at a time
        results: dict[str, list[Result]] = {side: [] for side in sides}
        for _ in range(arguments.rounds + 1):
            for side in sides:
                results[side].append(await measure(fleet, side, callers, arguments.seconds))
        for side in sides:
            report(side, callers, results[side][1:], results["step0"][1:])
        if "bls" not in results:
            continue
        pairs = zip(results["ensemble3"][1:], results["bls"][1:], strict=True)
        slower = spread([plain.per_second / bls.per_second for plain, bls in pairs])
        print(f"{callers:3} callers  bls of {BLS_STEPS} steps takes {slower} of the time of ensemble3")


def report(side: str, callers: int, results: Sequence[Result], direct: Sequence[Result]) -> None:
    times = [one.per_second / mine.per_second for mine, one in zip(results, direct, strict=True)]
    rate, ours, theirs, cpu = (statistics.median(column) for column in zip(*results, strict=True))
    print(
        f"{callers:3} callers  {side:10} {rate:6.0f} infer/s  {spread(times)} the time of direct  "
        f"CPU {cpu:5.2f} ms  copies {ours:.1f} ingress + {theirs:.1f} replicas"
    )


def spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):5.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]"


def start(directory: Path, name: str) -> Pipe:
    """Start a replica and wait until it listens; it ends when the pipe is closed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(directory, name, theirs), daemon=True).start()
    theirs.close()
    ours.recv()
    return ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    models = [*(f"step{i}" for i in range(STEPS)), "bls"]
    with tempfile.TemporaryDirectory() as directory:
        pipes = [start(Path(directory), model) for model in models]
        uvloop.run(compare(Path(directory), models, arguments))
        for pipe in pipes:
            pipe.close()


if __name__ == "__main__":
    main()
