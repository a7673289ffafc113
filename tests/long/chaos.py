"""A server whose processes are killed for CHAOS_SECONDS, under every kind of load.

Clients try again what was refused for now. No answer may be wrong, 999 of 1000 requests come right, the
server is ready at the end, and nothing is left of it when it has stopped.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from benchmarks.processes import role_of, tree
from tests.long.client import Client
from tests.long.mix import KINDS, MANAGEMENT, Mix
from tests.long.outcomes import Ledger
from tests.long.processes import Watch
from tests.long.server import MODELS, say, seconds, started
from tests.server import Server, wait_until

SUCCESS: Final = 0.999
RETRY_S: Final = 60.0
RECOVERY_S: Final = 60.0
INGRESS_REPLICAS: Final = 2
_INGRESS: Final = "replica nereid:ingress"
_MANAGER: Final = "replica nereid:repository-manager"
_CONTROLLER: Final = "serve controller"
_MODEL: Final = "replica model"
WEIGHTS: Final = {_MODEL: 6, _INGRESS: 3, _MANAGER: 1, _CONTROLLER: 1}


class Killer:
    """Kills random processes of a server."""

    def __init__(self, server: Server, seed: int) -> None:
        assert server.process is not None
        self._server = server
        self._root = psutil.Process(server.process.pid)
        self.random = random.Random(seed)
        self.recoveries: list[tuple[str, float]] = []

    def victims(self) -> dict[str, list[psutil.Process]]:
        """Processes that may be killed, by role; models together."""
        found: dict[str, list[psutil.Process]] = {role: [] for role in WEIGHTS}
        for process in tree(self._root):
            role = role_of(process)
            found.get(role, found[_MODEL] if role.startswith("replica ") else []).append(process)
        return found

    def kill(self) -> None:
        """Kill one, or two at the same moment, and wait until the server has them again."""
        roles = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=self.random.choice((1, 1, 1, 2)))
        victims = self.victims()
        chosen = {self.random.choice(victims[role]) for role in roles if victims[role]}
        names = " and ".join(sorted(role_of(process) for process in chosen))
        whole = {role: len(victims[role]) for role in (_INGRESS, _MANAGER, _CONTROLLER)}
        started = time.monotonic()
        for process in chosen:
            with suppress(psutil.NoSuchProcess):  # a model that was unloaded at this moment
                process.kill()
        psutil.wait_procs(chosen, RECOVERY_S)  # one that is ending may still have its connections
        wait_until(lambda: self._recovered(whole), RECOVERY_S, f"the server recovers from {names}")
        self.recoveries.append((names, time.monotonic() - started))
        say(f"  killed {names}: whole again after {self.recoveries[-1][1]:.1f} s")

    def _recovered(self, whole: dict[str, int]) -> bool:
        now = self.victims()
        return all(len(now[role]) >= n for role, n in whole.items()) and serves(self._server)


def serves(server: Server) -> bool:
    """Whether every model of the mix is ready."""
    return server.ready() and all(server.model_ready(model) for model in MODELS)


def torment(server: Server, ledger: Ledger, duration: float, seed: int) -> list[tuple[str, float]]:
    """Kill one process after the other under load; returns whom, and how long it took to have them back."""
    killer = Killer(server, seed)
    give_up = time.monotonic() + duration
    with Mix(server.http_url, server.grpc_url, ledger, KINDS, retry_s=RETRY_S):
        while time.monotonic() < give_up:
            time.sleep(killer.random.uniform(0.5, 4.0))
            try:
                killer.kill()
            except AssertionError as error:
                ledger.has_failed("recovery", str(error), wrong=True)
    return killer.recoveries


def check_every_kind(server: Server) -> Iterator[str]:
    """Afterwards every kind of request comes right at the first try."""
    ledger = Ledger()
    mix = Mix(server.http_url, server.grpc_url, ledger, (), clients=0)
    client = Client(server.http_url, server.grpc_url, 0)
    for kind in (*KINDS, *MANAGEMENT):
        mix.attempt(client, kind)
    client.close()
    yield from (f"afterwards {failure}" for failure in ledger.failures)


def stop(server: Server, seen: set[psutil.Process], private: Path) -> Iterator[str]:
    """Stop the server; yields what is left of it."""
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(90)
    if status:
        yield f"the server exited with {status}"
    for process in psutil.wait_procs(seen, timeout=10)[1]:
        yield f"left behind: {process.pid} {' '.join(process.cmdline())[:80]}"
    yield from (f"left behind: {path}" for path in leftovers(private))


def leftovers(private: Path) -> list[Path]:
    """Files and sockets of ours that a stopped server has left; Ray keeps the logs of its session."""
    shared = [path for path in Path("/dev/shm").iterdir() if path.name.startswith(("nereid", "soak-"))]
    kept = (private / f"nereid-{os.getuid()}" / "ray", private / "server.log")
    ours = [path for path in private.rglob("*") if not any(map(path.is_relative_to, kept))]
    return [*shared, *(path for path in ours if not path.is_dir())]


def run(duration: float, seed: int) -> list[str]:
    """Torment a server; returns what is wrong with it."""
    ledger = Ledger()
    with started(INGRESS_REPLICAS) as (server, private):
        assert server.process is not None
        with Watch(psutil.Process(server.process.pid)) as watch:
            recoveries = torment(server, ledger, duration, seed)
            wrong = list(ledger.failures if ledger.success < SUCCESS else ledger.wrong)
            wrong += _attempt(lambda: wait_until(lambda: serves(server), RECOVERY_S, "ready at the end"))
            wrong += check_every_kind(server)
        wrong += stop(server, watch.seen, private)
    for line in (*ledger.lines(), *summary(recoveries)):
        say(line)
    return wrong


def _attempt(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except AssertionError as error:
        return [str(error)]
    return []


def summary(recoveries: list[tuple[str, float]]) -> Iterator[str]:
    """Kills and recoveries in words."""
    times = sorted(seconds for _, seconds in recoveries)
    if times:
        middle = times[len(times) // 2]
        yield f"  {len(times)} kills, whole again after {middle:.1f} s (median), {times[-1]:.1f} s at most"


def main() -> None:
    seed = int(os.environ.get("CHAOS_SEED") or time.time())
    say(f"CHAOS_SEED={seed}")
    wrong = run(seconds("CHAOS_SECONDS"), seed)
    for line in wrong:
        say(f"FAILED: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
