"""Measures the cost of a load and of an idle model beside a bare Serve replica of the same cluster.

python -m benchmarks.startup

One model of each backend is loaded, `--rounds` times, and a bare deployment is run between them. CPU seconds
are those that the replica's process has used when it is ready, Python's and Ray's start included; wall is
what the client waits. Memory is what only this process has a second later: written (own), and pages
of libraries (file), which the next replica with the same library shares, and which the kernel may drop. The
bare replica runs with Serve's defaults, deployed by a driver that has joined the cluster before the clock
starts; `serve.run` looks for it once a second. What of a load is the framework's own import shows beside a
bare replica that imports the framework.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks import results
from benchmarks.processes import cpu_seconds, join_environment, replicas, status_kib
from benchmarks.servers import Command, Server, nereid, running, url
from benchmarks.tools import ROOT

MODELS = {
    "identity": "custom_identity_int32",
    "python": "square_int32",
    "onnxruntime": "simple",
    "pytorch": "efficientnet_lite0_torchscript",
}
"""An example model of each backend; those that are not there are left out."""
FRAMEWORKS = {"onnxruntime": "onnxruntime", "pytorch": "torch"}
"""The framework that each backend imports."""
BARE = "bare"
SETTLE_S = 1.0


class Cost(NamedTuple):
    """Cost of one start: seconds, seconds, MiB and MiB."""

    wall: float
    cpu: float
    own: float
    file: float


def replica(root: psutil.Process, application: str) -> psutil.Process:
    """Return the process of an application's only replica."""
    found = [pid for pid, title in replicas(root).items() if title.split(":")[0] == application]
    if len(found) != 1:
        raise RuntimeError(f"'{application}' has {len(found)} replicas")
    return psutil.Process(found[0])


def costs_of(process: psutil.Process, wall: float) -> Cost:
    cpu = cpu_seconds(process)
    time.sleep(SETTLE_S)
    own, file = (
        status_kib(process.pid, "smaps_rollup", field) / 1024 for field in ("Private_Dirty", "Private_Clean")
    )
    return Cost(wall, cpu, own, file)


def post(server: Server, path: str) -> None:
    request = urllib.request.Request(url(server.command.http_port, path), b"{}")
    with urllib.request.urlopen(request, timeout=300) as response:
        response.read()


def load(server: Server, model: str) -> Cost:
    """Load a model, measure it and unload it."""
    started = time.monotonic()
    post(server, f"/v2/repository/models/{model}/load")
    cost = costs_of(replica(server.process, model), time.monotonic() - started)
    post(server, f"/v2/repository/models/{model}/unload")
    return cost


class BareServe:
    """A driver in the server's cluster that runs and deletes a deployment that does nothing."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._driver = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.startup", "--drive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            env={**os.environ, **join_environment(server.process)},
        )

    def _ask(self, word: str) -> float:
        assert self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write(f"{word}\n")
        self._driver.stdin.flush()
        for line in self._driver.stdout:
            if line.startswith("{"):
                return float(json.loads(line)["seconds"])
        raise RuntimeError("the driver of the bare deployment has ended")

    def load(self, framework: str = "") -> Cost:
        """Start the deployment, with the import of a framework, and delete it."""
        wall = self._ask(f"run {framework}")
        cost = costs_of(replica(self._server.process, BARE), wall)
        self._ask("delete")
        return cost

    def close(self) -> None:
        assert self._driver.stdin is not None
        self._driver.stdin.close()
        self._driver.wait(60)


def drive() -> None:
    """Run and delete the bare deployment as the words on stdin say; print the seconds each took."""
    import ray
    from ray import serve

    class Bare:
        def __init__(self, framework: str) -> None:
            if framework:
                importlib.import_module(framework)

        def __call__(self) -> None:
            return None

    ray.init(log_to_driver=False)
    deployment: Any = serve.deployment(Bare, name=BARE, ray_actor_options={"num_cpus": 0})
    for line in sys.stdin:
        started = time.monotonic()
        word, _, framework = line.rstrip("\n").partition(" ")
        if word == "run":
            serve.run(deployment.bind(framework), name=BARE, route_prefix=None)
        else:
            serve.delete(BARE)
        print(json.dumps({"seconds": time.monotonic() - started}), flush=True)
    ray.shutdown()


def measure(server: Server, models: dict[str, str], rounds: int) -> dict[str, list[Cost]]:
    """Return costs by backend; every round starts each once."""
    found: dict[str, list[Cost]] = defaultdict(list)
    bare = BareServe(server)
    try:
        for _ in range(rounds):
            found[BARE].append(bare.load())
            for backend in FRAMEWORKS.keys() & models.keys():
                found[with_framework(backend)].append(bare.load(FRAMEWORKS[backend]))
            for backend, model in models.items():
                found[backend].append(load(server, model))
    finally:
        bare.close()
    return found


def with_framework(backend: str) -> str:
    """Return the name of the bare replica that a backend is compared with."""
    return f"{BARE} {FRAMEWORKS[backend]}" if backend in FRAMEWORKS else BARE


def weights_mib(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.rglob("model.*")) / 2**20


def report(found: dict[str, list[Cost]], weights: dict[str, float]) -> None:
    """Medians, and their ratios to those of a bare replica, and of one with the framework; own memory without
    the weights.
    """
    medians = {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in found.items()}
    title = "CPU and own over bare   over bare with the framework"
    print(f"{'':16} {'wall s':>7} {'CPU s':>7} {'own MiB':>8} {'file MiB':>8} {'weights':>8}   {title}")
    for name, cost in medians.items():
        loaded = weights.get(name, 0.0)
        ratios = [
            f"{cost.cpu / peer.cpu:6.2f} {(cost.own - loaded) / peer.own:6.2f}"
            for peer in (medians[BARE], medians[with_framework(name)])
        ]
        columns = f"{cost.wall:7.2f} {cost.cpu:7.2f} {cost.own:8.1f} {cost.file:8.1f} {loaded:8.1f}"
        print(f"{name:16} {columns}   {'   '.join(ratios)}")


def command(repository: Path, scratch: Path) -> Command:
    """Return the command of a server without a model."""
    made = nereid(repository, scratch, Path(sys.executable).parent / "nereid")
    arguments = [sys.executable, "-m", "nereid", *made.arguments[1:-1], "--model-control-mode=explicit"]
    return Command(made.name, arguments, made.http_port, made.grpc_port, made.freezable, made.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    results.add_flag(parser)
    arguments = parser.parse_args()
    if arguments.drive:
        drive()
        return
    with results.recorded("startup", arguments.record):
        compare(arguments.rounds)


def compare(rounds: int) -> None:
    """Measure the example models that are there; print the table."""
    examples = ROOT / "model_repository"
    models = {backend: model for backend, model in MODELS.items() if (examples / model).is_dir()}
    # Else each replica would compile what has changed.
    for package in ("app", "backends", "deployments", "nereid"):
        compileall.compile_dir(ROOT / package, quiet=1)
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        repository = Path(directory, "models")
        for model in models.values():
            shutil.copytree(examples / model, repository / model)
        with running(command(repository, Path(directory)), Path(directory)) as server:
            found = measure(server, models, rounds)
    report(found, {backend: weights_mib(examples / model) for backend, model in models.items()})


if __name__ == "__main__":
    main()
