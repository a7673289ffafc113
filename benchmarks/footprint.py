"""Prints what an idle server costs: processor time and memory of each of its processes, by role.

python -m benchmarks.footprint

Starts a server with `--models` Python models that return their input, waits `--settle` seconds, and measures
`--seconds`; then the same of Ray Serve with as many deployments that do nothing, for what Nereid adds to it.
Cores are processor seconds a second. Memory is what only the process has: written (own), and
pages of files (file), which the kernel may drop.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks import results
from benchmarks.processes import cpu_seconds, role_of, status_kib, tree
from benchmarks.servers import Command, free_ports, nereid, running

CONFIG: Final = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
MODEL: Final = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
            for request in requests
        ]
"""


class Cost(NamedTuple):
    """Cost of the processes of one role: their number, cores, MiB and MiB."""

    processes: int
    cores: float
    own: float
    file: float


def write_models(repository: Path, count: int) -> None:
    for number in range(count):
        directory = repository / f"model_{number}"
        (directory / "1").mkdir(parents=True)
        (directory / "config.pbtxt").write_text(CONFIG)
        (directory / "1" / "model.py").write_text(MODEL)


def measure(root: psutil.Process, seconds: float) -> dict[str, Cost]:
    """Return the costs by role over some seconds."""
    began = time.monotonic()
    before = {process.pid: cpu_seconds(process) for process in tree(root)}
    time.sleep(seconds)
    passed = time.monotonic() - began
    found: defaultdict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for process in tree(root):
        role = role_of(process, is_root=process.pid == root.pid)
        role = "replica of a model" if role.startswith(("replica model_", "replica nothing_")) else role
        own, file = (
            status_kib(process.pid, "smaps_rollup", field) / 1024
            for field in ("Private_Dirty", "Private_Clean")
        )
        cores = (cpu_seconds(process) - before.get(process.pid, 0.0)) / passed
        found[role].append((cores, own, file))
    return {role: Cost(len(each), *map(sum, zip(*each, strict=True))) for role, each in found.items()}


def report(costs: dict[str, Cost]) -> Cost:
    """Print the costs; return their sum."""
    print(f"{'':32} {'number':>6} {'cores':>7} {'own MiB':>8} {'file MiB':>8}")
    rows = sorted(costs.items(), key=lambda row: -row[1].own)
    rows.append(("all", Cost(*map(sum, zip(*costs.values(), strict=True)))))
    for role, cost in rows:
        print(f"{role:32} {cost.processes:6} {cost.cores:7.3f} {cost.own:8.1f} {cost.file:8.1f}")
    return rows[-1][1]


def command(repository: Path, scratch: Path) -> Command:
    """Return the command of a server with one ingress, run from this tree."""
    made = nereid(repository, scratch, Path(sys.executable).parent / "nereid")
    arguments = [sys.executable, "-m", "nereid", *made.arguments[1:-1]]
    return Command(made.name, arguments, made.http_port, made.grpc_port, made.freezable, made.env)


def bare(deployments: int, scratch: Path) -> Command:
    """Return the command of a Serve server without models, ingress and manager."""
    (port,) = free_ports(1)
    options = ["--port", str(port), "--deployments", str(deployments)]
    arguments = [sys.executable, "-m", "benchmarks.bare_serve", *options]
    return Command("bare", arguments, port, 0, freezable=True, env={"RAY_TMPDIR": str(scratch / "b")})


def measured(command: Command, scratch: Path, settle_s: float, seconds: float) -> Cost:
    """Start a server, print its costs, and return their sum."""
    with running(command, scratch) as server:
        print(f"\n{command.name}: ready after {server.ready_s:.1f} s")
        time.sleep(settle_s)
        return report(measure(server.process, seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    results.add_flag(parser)
    arguments = parser.parse_args()
    with results.recorded("footprint", arguments.record):
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Measure both servers; print their costs and the ratio."""
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        write_models(Path(directory, "models"), arguments.models)
        scratch, models = Path(directory), arguments.models
        ours = measured(command(scratch / "models", scratch), scratch, arguments.settle, arguments.seconds)
        # One deployment for each model, and two for the ingress and the manager.
        theirs = measured(bare(models + 2, scratch), scratch, arguments.settle, arguments.seconds)
    print(
        f"\nNereid / bare Serve: cores {ours.cores / theirs.cores:.2f}, own MiB {ours.own / theirs.own:.2f}"
    )


if __name__ == "__main__":
    main()
