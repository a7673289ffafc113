"""Measures the cost of composition on 600 KB tensors: ensembles of identity steps, and BLS of as many.

python -m benchmarks.ensembles

Each step is a served model in a process of its own, reached over a channel as from an ingress; this process
is the ingress. Callers without a front are in it, too; that of `http` or `grpc` is a tritonclient in another
process, which sends 600 KB in the body, so that the front is measured with the rest. `step0` is one request
to one step, what the first ratios are to. BLS models are compared to the ensemble that does the same: `bls`
makes its calls by `exec`, one after the other, `bls_await` by `async_exec`; `bls_gather` makes them all at
once, as the ensemble `fan` does. "copies" are tensors written to an arena for each request, by the ingress
and by the replicas: how often the tensor's bytes moved. CPU is that of ingress and replicas together. Rounds
alternate; a ratio is the median of the rounds' own.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import uvloop

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ingress.grpc.front import GrpcFront
from app.ingress.rest.front import HttpFront
from app.ingress.service.routed import RoutedInferenceService
from app.settings.settings import ServerSettings
from app.transport.event_loop_thread import freeze_heap
from benchmarks.composition import MODELS, Costs, Fleet, start
from benchmarks.tools import ROOT

ELEMENTS = 150_000
DIRECT = "step0"
PEERS = {"bls": "ensemble3", "bls_await": "ensemble3", "bls_gather": "fan"}
"""The ensemble that each BLS model is compared with."""
SIDES = (DIRECT, "ensemble1", "ensemble5", "ensemble3", "bls", "bls_await", "fan", "bls_gather")
"""In the order that they are measured in: those that are compared are near each other."""
FRONTS: Mapping[str, Callable[[Any], Any] | None] = {"none": None, "http": HttpFront, "grpc": GrpcFront}


class Result(NamedTuple):
    """One side in one round."""

    per_second: float
    ingress_copies: float
    replica_copies: float
    cpu_ms: float

    @classmethod
    def of(cls, done: int, seconds: float, before: Costs, after: Costs) -> Result:
        spent = [(now - then) / done for now, then in zip(after, before, strict=True)]
        return cls(done / seconds, spent[0], spent[1], spent[2] * 1000)


class Client:
    """Process in which a tritonclient sends one request after the other through a front."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, front: str, port: int) -> Client:
        command = [sys.executable, "-m", "benchmarks.ensembles", "--call", front, str(port)]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe))

    async def load(self, model: str, seconds: float) -> int:
        """Return the number of requests answered."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{model} {seconds}\n".encode())
        return int(await self._process.stdout.readline())


def call(front: str, port: str) -> None:
    """Run the client's process."""
    module = importlib.import_module(f"tritonclient.{front}")
    client = module.InferenceServerClient(f"127.0.0.1:{port}")
    tensor = module.InferInput("INPUT0", [1, ELEMENTS], "FP32")
    data = np.arange(ELEMENTS, dtype=np.float32)[None]
    tensor.set_data_from_numpy(data)
    for line in sys.stdin:
        model, seconds = line.split()
        done, end = 0, time.monotonic() + float(seconds)
        while not done or time.monotonic() < end:
            result = client.infer(model, [tensor])
            done += 1
        assert np.array_equal(result.as_numpy("OUTPUT0"), data)
        print(done, flush=True)


class Bench:
    """The ingress and its callers."""

    def __init__(self, fleet: Fleet, clients: dict[str, Client], seconds: float) -> None:
        self._fleet = fleet
        self._clients = clients
        self._seconds = seconds

    @classmethod
    async def open(cls, directory: Path, fronts: Sequence[str], seconds: float) -> Bench:
        fleet = await Fleet.connect(directory, MODELS)
        service = RoutedInferenceService(ServerSettings(), cast(Any, fleet), cast(Any, None))
        freeze_heap()
        clients = {}
        for name, kind in FRONTS.items():
            if kind is not None and name in fronts:
                clients[name] = await Client.start(name, await kind(service).start("127.0.0.1", 0))
        return cls(fleet, clients, seconds)

    async def measure(self, front: str, model: str, callers: int) -> Result:
        """Load one model with `callers` callers that have one request in flight each."""
        before, began = await self._fleet.costs(), time.monotonic()
        if front in self._clients:
            done = await self._clients[front].load(model, self._seconds)
        else:
            done = sum(await asyncio.gather(*(self._call(model) for _ in range(callers))))
        return Result.of(done, time.monotonic() - began, before, await self._fleet.costs())

    async def _call(self, model: str) -> int:
        loop = asyncio.get_running_loop()
        data = np.ones((1, ELEMENTS), np.float32)
        request = InferRequest(model, "", (Tensor.from_array("INPUT0", data),))
        done, end = 0, loop.time() + self._seconds
        while loop.time() < end:
            answer: asyncio.Future[InferResponse] = loop.create_future()
            self._fleet.submit(self._fleet.resolve(model), request, answer.set_result)
            response = await answer
            if response.failure is not None:
                raise response.failure.error()
            done += 1
        return done


async def compare(directory: Path, arguments: argparse.Namespace) -> None:
    """Print a line a side, and one a BLS model."""
    bench = await Bench.open(directory, arguments.fronts, arguments.seconds)
    for front in arguments.fronts:
        for callers in arguments.callers if front == "none" else [1]:
            # A Python model executes one request at a time.
            sides = [side for side in SIDES if callers == 1 or side not in PEERS]
            results: dict[str, list[Result]] = {side: [] for side in sides}
            for _ in range(arguments.rounds + 1):
                for side in sides:
                    results[side].append(await bench.measure(front, side, callers))
            report(f"{front:4} {callers:2} callers ", {side: found[1:] for side, found in results.items()})


def report(title: str, results: dict[str, list[Result]]) -> None:
    for side, found in results.items():
        rate, ours, theirs, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(
            f"{title} {side:10} {rate:6.0f} infer/s  {compared(found, results[DIRECT], 'time')} of direct  "
            f"CPU {cpu:5.2f} ms  copies {ours:.1f} ingress + {theirs:.1f} replicas"
        )
    for side, peer in PEERS.items():
        if side in results:
            time, cpu = (compared(results[side], results[peer], what) for what in ("time", "CPU"))
            print(f"{title} {side:10} takes {time} and {cpu} of {peer}", flush=True)


def compared(results: Sequence[Result], peers: Sequence[Result], what: str) -> str:
    pairs = zip(results, peers, strict=True)
    ratios = [
        peer.per_second / mine.per_second if what == "time" else mine.cpu_ms / peer.cpu_ms
        for mine, peer in pairs
    ]
    return f"{statistics.median(ratios):5.2f}x [{min(ratios):.2f}, {max(ratios):.2f}] the {what}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8], help="as far as there is no front")
    parser.add_argument("--fronts", nargs="+", choices=FRONTS, default=list(FRONTS))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        call(*arguments.call)
        return
    with tempfile.TemporaryDirectory() as directory:
        pipes = [start(Path(directory), model) for model in MODELS]
        uvloop.run(compare(Path(directory), arguments))
        for pipe in pipes:
            pipe.close()


if __name__ == "__main__":
    main()
