"""Prints what an idle server costs: processor time and memory of each of its processes, by role.

python -m benchmarks.footprint

Starts a server with `--models` Python models that return their input, waits `--settle` seconds, and measures
`--seconds`. Cores are processor seconds a second. Memory is what only the process has: written (own), and
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

from benchmarks.processes import cpu_seconds, role_of, status_kib, tree
from benchmarks.servers import Command, nereid, running

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
        role = "replica of a model" if role.startswith("replica model_") else role
        own, file = (
            status_kib(process.pid, "smaps_rollup", field) / 1024
            for field in ("Private_Dirty", "Private_Clean")
        )
        cores = (cpu_seconds(process) - before.get(process.pid, 0.0)) / passed
        found[role].append((cores, own, file))
    return {role: Cost(len(each), *map(sum, zip(*each, strict=True))) for role, each in found.items()}


def report(costs: dict[str, Cost]) -> None:
    print(f"{'':32} {'number':>6} {'cores':>7} {'own MiB':>8} {'file MiB':>8}")
    rows = sorted(costs.items(), key=lambda row: -row[1].own)
    rows.append(("all", Cost(*map(sum, zip(*costs.values(), strict=True)))))
    for role, cost in rows:
        print(f"{role:32} {cost.processes:6} {cost.cores:7.3f} {cost.own:8.1f} {cost.file:8.1f}")


def command(repository: Path, scratch: Path) -> Command:
    """Return the command of a server with one ingress, run from this tree."""
    made = nereid(repository, scratch, Path(sys.executable).parent / "nereid")
    arguments = [sys.executable, "-m", "nereid", *made.arguments[1:-1]]
    return Command(made.name, arguments, made.http_port, made.grpc_port, made.freezable, made.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, default=2)
    parser.add_argument("--settle", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        write_models(Path(directory, "models"), arguments.models)
        with running(command(Path(directory, "models"), Path(directory)), Path(directory)) as server:
            print(f"ready after {server.ready_s:.1f} s, {arguments.models} models")
            time.sleep(arguments.settle)
            report(measure(server.process, arguments.seconds))


if __name__ == "__main__":
    main()
