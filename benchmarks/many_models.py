"""Prints how a server behaves as its models become many: loads, Serve's controller, the routing table.

python -m benchmarks.many_models --models 10 50 100

Loads small Python models, four at a time, and measures at each of the numbers: the seconds of the last load,
by itself, mean and maximum of the controller's last loops, the cores of the controller, the ingress and the
whole server while idle, the private memory, and the bytes of a routing table.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.footprint import command, measure, write_models
from benchmarks.servers import Command, Server, running, url

_PARALLEL: Final = 4
_LOAD_S: Final = 240.0
_SETTLE_S: Final = 5.0
_IDLE_S: Final = 10.0
_CONTROLLER: Final = "serve controller"
_INGRESS: Final = "replica nereid:ingress"
_ASK: Final = """
import json, ray
from app.main import routing_table
from app.routing.table import encode_table
ray.init(log_to_driver=False)
controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
print(json.dumps([ray.get(controller.get_health_metrics.remote()), len(encode_table(routing_table()))]))
"""
_HEADER: Final = """\
| models | all in s | one more s | loop mean ms | max | controller cores | ingress | all | GiB | table bytes |
|---|---|---|---|---|---|---|---|---|---|"""


def load(server: Server, number: int) -> float:
    """Load a model by request; return the seconds it took."""
    began = time.monotonic()
    address = url(server.command.http_port, f"/v2/repository/models/model_{number}/load")
    with urllib.request.urlopen(urllib.request.Request(address, b"{}"), timeout=_LOAD_S):
        return time.monotonic() - began


def ask_cluster(server: Server) -> tuple[dict[str, Any], int]:
    """Return what Serve's controller says of its own health, and the bytes of the routing table."""
    raylet = next(each for each in server.process.children(recursive=True) if each.name() == "raylet")
    (address,) = (word.split("=")[1] for word in raylet.cmdline() if word.startswith("--gcs-address="))
    env = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        sys.exit(done.stderr[-4000:])
    health, table = json.loads(done.stdout.splitlines()[-1])
    return health, table


def row(server: Server, models: int, loaded_s: float) -> str:
    """Load one model more, wait until the server is idle, and return the row of the table."""
    one_s = load(server, models - 1)
    time.sleep(_SETTLE_S)
    costs = measure(server.process, _IDLE_S)
    health, table = ask_cluster(server)
    loop = health["loop_duration_s"]
    cells = (
        *(models, f"{loaded_s:.0f}", f"{one_s:.1f}"),
        *(f"{1e3 * loop[name]:.0f}" for name in ("mean", "max")),
        *(f"{costs[role].cores:.2f}" for role in (_CONTROLLER, _INGRESS)),
        f"{sum(cost.cores for cost in costs.values()):.2f}",
        f"{sum(cost.own + cost.file for cost in costs.values()) / 1024:.1f}",
        table,
    )
    return f"| {' | '.join(map(str, cells))} |"


def explicit(made: Command) -> Command:
    """Return the command with which a server loads nothing at the start."""
    arguments = [*made.arguments, "--model-control-mode=explicit"]
    return Command(made.name, arguments, made.http_port, made.grpc_port, made.freezable, made.env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=int, nargs="+", default=[10, 50, 100])
    numbers = sorted(parser.parse_args().models)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # who ends this ends the server too
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        scratch = Path(directory)
        write_models(scratch / "models", numbers[-1])
        print(_HEADER, flush=True)
        with (
            running(explicit(command(scratch / "models", scratch)), scratch) as server,
            ThreadPoolExecutor(_PARALLEL) as pool,
        ):
            loaded, spent = 0, 0.0
            for models in numbers:
                began = time.monotonic()
                list(pool.map(lambda number: load(server, number), range(loaded, models - 1)))
                spent += time.monotonic() - began
                print(row(server, models, spent), flush=True)
                loaded = models


if __name__ == "__main__":
    main()
