"""Switches the head of a cluster off for 30 s, and prints what clients of another machine saw.

Two machines that are network namespaces of this one, the state of Ray's GCS in RocksDB on the head's disk or
in Redis, and 50 connections to the worker. The model is in a rollout, both of whose versions have a replica
on each machine. Fails when a request fails that was not in flight or began a second later, when the worker is
not ready meanwhile, when the rollout does not go on as it was, or when a model cannot be loaded afterwards.
"""

import argparse
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final

from tests.long.namespaces import GATEWAY, require
from tests.long.node_load import HEADER, NodeLoad, Row, answer, judge
from tests.long.plants import PLANTS
from tests.long.ray_nodes import MANAGER, RESTORED, STEADY, Nodes, running
from tests.long.server import say
from tests.rollout_calls import ask_http
from tests.server import ROOT, wait_until

CONNECTIONS: Final = 50
_AWAY_S: Final = 30.0
_BACK_S: Final = 120.0
_REDIS_PORT: Final = 6399
_FURTHER: Final = "add_one"
_VERSIONS: Final = (f"{STEADY}:1", f"{STEADY}:2")
_WEIGHT: Final = 60
"""Percent: of two replicas, that needs both."""
STORAGES: Final[Mapping[str, Mapping[str, str]]] = {
    "rocksdb": RESTORED,
    "redis": {"RAY_REDIS_ADDRESS": f"{GATEWAY}:{_REDIS_PORT}"},
}
"""Settings of the head's Ray."""


@contextmanager
def redis() -> Iterator[None]:
    """A Redis that every machine reaches. Binds the address of the bridge, which may not be there yet."""
    words = ["redis-server", "--port", str(_REDIS_PORT), "--save", "", "--protected-mode", "no"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def begin_rollout(nodes: Nodes) -> Any:
    """Start a rollout of `steady` that gives version 2 three of five requests; return its status."""
    directory = nodes.models / STEADY
    shutil.copytree(directory / "1", directory / "2")
    spec = {"step": {"min_requests": 10**9, "max_seconds": 10**6}}
    status, started = ask_http(_worker(nodes), "steady", {"action": "start", "weight": _WEIGHT, "spec": spec})
    if status != "200":
        sys.exit(f"the rollout does not start: {started}")
    wait_until(lambda: nodes.whole(*_VERSIONS), _BACK_S, "both versions on both machines")
    return started


def check_rollout(nodes: Nodes, before: Any) -> None:
    """Check that a rollout is as it was before, and can be changed; end the program if it is not."""
    _, after = ask_http(_worker(nodes), "steady")
    kept = ("rollout", "state", "percent", "step", "stable", "candidate")
    if [after[name] for name in kept] != [before[name] for name in kept]:
        sys.exit(f"the rollout is not as it was: {after}")
    counted = {role: after["total"][role].get("ok", 0) for role in ("stable", "candidate")}
    say(f"the rollout is in state {after['state']} at {after['percent']:g} %, and has counted {counted}")
    status, moved = ask_http(_worker(nodes), "steady", {"action": "set", "weight": 80})
    if status != "200" or moved["percent"] != 80:
        sys.exit(f"the rollout cannot be changed: {moved}")


def _worker(nodes: Nodes) -> str:
    return f"{nodes.worker.address}:8000"


def lose(nodes: Nodes) -> Row:
    """Lose the head and bring it back; return what clients of the worker saw."""
    with NodeLoad(nodes.worker.address, CONNECTIONS) as load:
        begun = time.monotonic()
        wait_until(lambda: min(load.answered_by(n, begun) for n in (2, 3)) > 200, 30.0, "both answer")
        say(f"the repository manager runs on the {'head' if nodes.head.processes(MANAGER) else 'worker'}")
        at = time.monotonic()
        nodes.head.switch_off()
        time.sleep(_AWAY_S)
        nodes.head.switch_on()
        nodes.start_ray(nodes.head)
        say(f"the head's Ray runs after {time.monotonic() - at:.1f} s")
        wait_until(lambda: nodes.whole(*_VERSIONS), _BACK_S, "both versions on both machines")
        back = time.monotonic()
        wait_until(lambda: load.answered_by(2, back) > 200, 30.0, "the head answers again")
        return judge("head off for 30 s", load, at, time.monotonic())


def load_another(nodes: Nodes) -> float:
    """Load a further model by a request to the worker, and ask it at both; return the seconds it took."""
    begun = time.monotonic()
    shutil.copytree(ROOT / "tests/long/models" / _FURTHER, nodes.models / _FURTHER)
    url = f"http://{nodes.worker.address}:8000/v2/repository/models/{_FURTHER}/load"
    with urllib.request.urlopen(url, b"{}", timeout=120):
        took = time.monotonic() - begun
    for machine in (nodes.head, nodes.worker):
        if answer(machine.address, _FURTHER) != [2, 3]:
            sys.exit(f"{machine.address} does not answer for the model that was loaded afterwards")
    return took


def faults(row: Row) -> list[str]:
    """Return what is worse than it may be."""
    found = []
    if row.failed > row.in_flight:
        found.append(f"{row.failed} requests failed, {row.in_flight} were in flight")
    if row.later:
        found.append(f"{row.later} requests failed that began later")
    if row.not_ready_s:
        found.append(f"the worker said for {row.not_ready_s:.1f} s that it is not ready")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: sudo .venv/bin/python -m tests.long.head_loss --storage redis",
    )
    parser.add_argument("--storage", choices=STORAGES, default="rocksdb")
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    storage = given.storage
    require(*(["redis-server"] if storage == "redis" else []))
    with (
        redis() if storage == "redis" else nullcontext(),
        running(STORAGES[storage], plant=given.plant) as nodes,
    ):
        begun = begin_rollout(nodes)
        row = lose(nodes)
        check_rollout(nodes, begun)
        say(f"a load through the worker took {load_another(nodes):.1f} s")
    say(HEADER)
    say(row.line())
    for text in row.failures:
        say(f"    {text}")
    if found := faults(row):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
