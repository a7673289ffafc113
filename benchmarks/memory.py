"""Compares the memory of a model replica with that of a bare Serve replica, without the weights.

USS is what only that process holds (its end would give it back); PSS adds its share of what several map.

It runs inside `benchmarks.run`, which gives it the environment that joins the server's cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.processes import MIB, REPLICA_TITLE, status_kib, tree
from benchmarks.servers import Server
from benchmarks.tools import ROOT

APPLICATION = "bench_bare"


@dataclass(frozen=True)
class Weight:
    """All in MiB; `files` are the model version's."""

    replica: str
    uss: float
    pss: float
    rss: float
    files: float


def weigh(pid: int, replica: str, files: float = 0.0) -> Weight:
    def mib(field: str) -> float:
        return status_kib(pid, "smaps_rollup", field) / 1024

    return Weight(replica, mib("Private_Clean") + mib("Private_Dirty"), mib("Pss"), mib("Rss"), files)


def replicas(root: psutil.Process) -> dict[int, str]:
    """Return pid and `application:deployment` of each Serve replica under the server."""
    found = {}
    for process in tree(root):
        title = " ".join(process.cmdline())
        if match := re.match(REPLICA_TITLE, title):
            found[process.pid] = match[1]
    return found


def raylet(root: psutil.Process) -> psutil.Process:
    for process in tree(root):
        if "raylet/raylet" in " ".join(process.cmdline()):
            return process
    raise RuntimeError(f"no Ray cluster under pid {root.pid}")


def join_environment(root: psutil.Process) -> dict[str, str]:
    """Return the environment in which a driver joins the server's cluster: address and authentication."""
    node = raylet(root)
    found = re.search(r"--gcs-address=(\S+)", " ".join(node.cmdline()))
    settings = {
        name: value
        for name, value in node.environ().items()
        if name.startswith(("RAY_AUTH", "RAY_SERVE", "RAY_ENABLE"))
    }
    return {**settings, "RAY_ADDRESS": found[1] if found else ""}


def weights_mib(replica: str, repository: Path) -> float:
    """Return the size of the weights of a replica's model; 0 for an ingress."""
    models = [path for path in repository.iterdir() if path.is_dir() and path.name in replica]
    return sum(file.stat().st_size for model in models for file in model.rglob("*.onnx")) / MIB


def weigh_cluster(root: psutil.Process, repository: Path) -> list[Weight]:
    """Weigh all replicas, the bare one first; joins the server's cluster as a driver to deploy that."""
    import ray
    from ray import serve

    class Bare:
        def __call__(self) -> None:
            return None

    ray.init(log_to_driver=False)
    bare: Any = serve.deployment(Bare, name="bare", ray_actor_options={"num_cpus": 0})
    try:
        serve.run(bare.bind(), name=APPLICATION, route_prefix=None)
        found = [weigh(pid, name, weights_mib(name, repository)) for pid, name in replicas(root).items()]
    finally:
        serve.delete(APPLICATION)
        ray.shutdown()
    return sorted(found, key=lambda weight: (not weight.replica.startswith(APPLICATION), weight.replica))


def weigh_server(server: Server, repository: Path) -> list[Weight]:
    """Weigh the server's replicas from a process of its own, which may join the server's cluster."""
    command = [sys.executable, "-m", "benchmarks.memory"]
    command += [f"--root-pid={server.process.pid}", f"--repository={repository}"]
    env = {**os.environ, **join_environment(server.process)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise RuntimeError(f"weighing {server.name} failed: {done.stderr[-1000:]}")
    return [Weight(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def rows(server: str, weights: list[Weight]) -> list[list[str]]:
    bare = weights[0].uss
    return [
        [
            server,
            w.replica,
            *(f"{size:.0f}" for size in (w.uss, w.pss, w.rss, w.files)),
            f"{w.uss - bare - w.files:+.0f}",
        ]
        for w in weights
    ]


HEADER = ["server", "replica", "USS MiB", "PSS MiB", "RSS MiB", "weights", "USS over bare, less weights"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root-pid", type=int, required=True)
    parser.add_argument("--repository", type=Path, required=True)
    arguments = parser.parse_args()
    weights = weigh_cluster(psutil.Process(arguments.root_pid), arguments.repository)
    print(json.dumps([asdict(weight) for weight in weights]))


if __name__ == "__main__":
    main()
