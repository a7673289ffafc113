"""Answers in time under overload: peak, 3 and 10 times the capacity, by scheduler and kind of client.

    python -m benchmarks.goodput                                    all cells: about 6 minutes
    python -m benchmarks.goodput --against ../other-checkout        beside another tree's server, in turn
    python -m benchmarks.goodput --schedulers direct --clients http --seconds 5

A model sleeps so that it answers 50 requests a second; its clients wait for a second and leave. Goodput is
what they got in that time. `http` clients say nothing and close their connection, `http timeout` send
Triton's parameter `timeout`, `grpc` a deadline. `peak` is that of 8 clients who send one request after the
other; loads are offered by an open loop, and count from the first request on. Each request to a sequence
scheduler is a sequence of its own. The servers run on 127.0.0.1, in turn for each cell. Memory is what the
model's replica (MiB) shares with nobody, before and after the cell.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tritonclient.grpc import service_pb2 as pb

from benchmarks import results
from benchmarks.load import Generator, LoadResult, at_rate
from benchmarks.processes import tree
from benchmarks.report import table
from benchmarks.servers import Command, clean_environment, free_ports, stop, wait_ready
from benchmarks.tools import ROOT
from benchmarks.workloads import MODEL_INFER, set_parameters
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.http2 import grpc_payload
from nereid_client.tools.perf.generator.job import Endpoint, Job

ELEMENTS = 16
SEQUENCES = 4096
"""More than clients wait at a time."""
CAPACITY = 50
PEAK_CLIENTS = 8
LOADS = (3, 10)
CLIENTS = ("http", "http timeout", "grpc")
REST_S = 2.0
"""Between cells, so that no request of one is left in the next."""
CONFIG = """
backend: "identity" max_batch_size: {rows}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
instance_group {{ count: {instances} kind: KIND_CPU }}
{more}
"""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "direct": {"rows": 8, "delay": 20, "instances": 1, "more": ""},
    "direct x2": {"rows": 8, "delay": 40, "instances": 2, "more": ""},
    "dynamic": {"rows": 4, "delay": 80, "instances": 1, "more": "dynamic_batching {}"},
    "sequence": {"rows": 1, "delay": 20, "instances": 1, "more": "sequence_batching { direct {} }"},
    "oldest": {
        "rows": 4,
        "delay": 80,
        "instances": 1,
        "more": "sequence_batching { oldest { max_candidate_sequences: 64 } }",
    },
}


class Side(NamedTuple):
    """A running server of one tree."""

    name: str
    command: Command
    process: psutil.Process

    def replica_mib(self, model: str) -> float:
        """Return the memory of a model's replica that nobody shares with it."""
        for process in tree(self.process):
            if f"ServeReplica:{model}:1" in " ".join(process.cmdline()):
                return float(process.memory_full_info().uss) / (1 << 20)
        return 0.0


class Cell(NamedTuple):
    """The outcome of one load; `load` 0 is the peak."""

    side: str
    scheduler: str
    client: str
    load: int
    outcome: LoadResult
    mib: tuple[float, float]

    @property
    def title(self) -> str:
        return f"{self.scheduler}, {self.client}, {f'{self.load}x' if self.load else 'peak'}"


def write_repository(directory: Path, schedulers: Sequence[str]) -> None:
    for name in schedulers:
        model = directory / model_name(name)
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG.format(**SCHEDULERS[name]))


def model_name(scheduler: str) -> str:
    return scheduler.replace(" ", "_")


@contextmanager
def serving(
    name: str, root: Path, repository: Path, scratch: Path, flags: Sequence[str] = ()
) -> Iterator[Side]:
    """Run the server of a tree."""
    http, grpc, metrics = free_ports(3)
    ports = {"http": http, "grpc": grpc, "metrics": metrics}
    arguments = [sys.executable, "-m", "nereid", f"--model-repository={repository}", *flags]
    command = Command(
        name, [*arguments, *(f"--{front}-port={port}" for front, port in ports.items())], http, grpc, False
    )
    environment = {"PYTHONPATH": str(root), "RAY_TMPDIR": str(scratch / name[:1])}
    log = scratch / f"{name}.log"
    with log.open("wb") as output:
        process = psutil.Popen(
            command.arguments,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), **environment},
            cwd=root,
            start_new_session=True,
        )
    try:
        wait_ready(command, process, log, time.monotonic() + 180)
        yield Side(name, command, process)
    finally:
        stop(process)


class Target(NamedTuple):
    """Where requests go and how long their clients wait; with `sequences` each is a sequence of its own."""

    http_port: int
    grpc_port: int
    model: str
    client: str
    wait_s: float
    sequences: bool = False

    def offered(self, rate: float, seconds: float) -> Job:
        """Return an open loop of clients that leave."""
        return at_rate(self._endpoint(), self._payloads(), rate, seconds, self.wait_s)

    def saturated(self, clients: int) -> Job:
        """Return a closed loop of clients that wait as long as it takes."""
        patient = self._replace(wait_s=10 * self.wait_s)
        return Job(
            patient._endpoint(), tuple(patient._payloads()), concurrency=clients, timeout_s=patient.wait_s
        )

    def _endpoint(self) -> Endpoint:
        if self.client == "grpc":
            deadline = ("grpc-timeout", f"{int(self.wait_s * 1000)}m")
            return Endpoint("grpc", "127.0.0.1", self.grpc_port, MODEL_INFER, (deadline,))
        return Endpoint("http", "127.0.0.1", self.http_port, f"/v2/models/{self.model}/infer")

    def _payloads(self) -> list[bytes]:
        made = self._grpc if self.client == "grpc" else self._http
        return [made(number) for number in range(1, SEQUENCES)] if self.sequences else [made(0)]

    def _http(self, sequence: int) -> bytes:
        parameters: dict[str, int | bool] = _sequence(sequence)
        if self.client == "http timeout":
            parameters["timeout"] = int(self.wait_s * 1e6)
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, ELEMENTS], "data": [0.0] * ELEMENTS}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        return http_request(self._endpoint(), {}, body)

    def _grpc(self, sequence: int) -> bytes:
        request = pb.ModelInferRequest(model_name=self.model)
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, ELEMENTS])
        request.raw_input_contents.append(bytes(4 * ELEMENTS))
        set_parameters(request, _sequence(sequence))
        return grpc_payload(request.SerializeToString())


def _sequence(number: int) -> dict[str, int | bool]:
    """Return the parameters of a sequence of one request; none for 0."""
    return {"sequence_id": number, "sequence_start": True, "sequence_end": True} if number else {}


def measure(
    side: Side, generator: Generator, scheduler: str, client: str, load: int, options: argparse.Namespace
) -> Cell:
    model = model_name(scheduler)
    ports = side.command.http_port, side.command.grpc_port
    target = Target(*ports, model, client, options.wait, scheduler in ("sequence", "oldest"))
    seconds = options.seconds
    job = target.offered(load * CAPACITY, seconds) if load else target.saturated(PEAK_CLIENTS)
    before = side.replica_mib(model)
    outcome = generator.run(job, seconds)
    after = side.replica_mib(model)
    time.sleep(REST_S)
    return Cell(side.name, scheduler, client, load, outcome, (before, after))


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    lines = []
    for cell in cells:
        outcome, peak = cell.outcome, peak_of(cell, cells)
        lines.append(
            [
                cell.title,
                cell.side,
                f"{outcome.infer_per_s:.1f}",
                f"{100 * outcome.infer_per_s / peak:.0f}%" if peak else "",
                f"{outcome.p50_ms:.0f}",
                ", ".join(f"{count} {end.name.lower()}" for end, count in sorted(outcome.failures.items())),
                f"{cell.mib[0]:.0f} {cell.mib[1]:.0f}",
            ]
        )
    return lines


def peak_of(cell: Cell, cells: Sequence[Cell]) -> float:
    """Return the peak of the same tree, scheduler and client."""
    return next((c.outcome.infer_per_s for c in cells if c[:3] == cell[:3] and not c.load), 0.0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="root of another tree, whose server is measured too")
    parser.add_argument("--seconds", type=float, default=10, help="length of a cell (10)")
    parser.add_argument("--wait", type=float, default=1, help="seconds that clients wait (1)")
    parser.add_argument("--schedulers", default="direct,dynamic,sequence", help=", ".join(SCHEDULERS))
    parser.add_argument("--clients", default="http,grpc", help=", ".join(CLIENTS))
    results.add_flag(parser)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    with results.recorded("goodput", options.record):
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Measure all cells; print the table."""
    schedulers, clients = options.schedulers.split(","), options.clients.split(",")
    cells: list[Cell] = []
    with ExitStack() as stack:
        generator = stack.enter_context(Generator())
        folder = tempfile.TemporaryDirectory(prefix="g", ignore_cleanup_errors=True)
        scratch = Path(stack.enter_context(folder))
        write_repository(scratch / "models", schedulers)
        roots = {"nereid": ROOT, **({"against": options.against.resolve()} if options.against else {})}
        sides = [
            stack.enter_context(serving(name, root, scratch / "models", scratch))
            for name, root in roots.items()
        ]
        for scheduler in schedulers:
            for client in clients:
                for load in (0, *LOADS):
                    cells += [measure(side, generator, scheduler, client, load, options) for side in sides]
    header = ["cell", "side", "in time/s", "of peak", "p50 ms", "others", "replica MiB"]
    print(table(header, rows(cells)))


if __name__ == "__main__":
    if not os.environ.get("RAY_USAGE_STATS_ENABLED"):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()
