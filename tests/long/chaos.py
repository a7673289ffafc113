"""A server whose processes are killed and stopped for some minutes, under every kind of load.

Ray's own are among them: the server may then exit, with a status other than 0, and is started again. Clients
try again what was refused for now. No answer may be wrong, 999 of 1000 requests come right, the server is
ready at the end, and nothing is left of it when it has stopped.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from benchmarks.processes import role_of, tree
from tests.long.client import Client
from tests.long.mix import KINDS, MANAGEMENT, Mix
from tests.long.outcomes import Ledger
from tests.long.server import MODELS, say, started
from tests.server import Server, wait_until

SUCCESS: Final = 0.999
RETRY_S: Final = 60.0
RECOVERY_S: Final = 60.0
INGRESS_REPLICAS: Final = 2
_INGRESS: Final = "replica nereid:ingress"
_MANAGER: Final = "replica nereid:repository-manager"
_CONTROLLER: Final = "serve controller"
_MODEL: Final = "replica model"
_PROCESS: Final = "model process"
"""Of a Python model, beside its replica."""
WEIGHTS: Final = {
    **{_MODEL: 4.0, _PROCESS: 3.0, _INGRESS: 3.0, _MANAGER: 1.0, _CONTROLLER: 1.0},
    **{"raylet": 0.3, "gcs": 0.3, "ray agents": 0.4, "fork server": 0.7},
    "fork server of models": 0.7,
}
HOLDS_S: Final = (1.0, 4.0, RECOVERY_S)
"""How long a process may be stopped: for a pause, for more than heartbeats may be missed, until replaced."""


class Blow(NamedTuple):
    """What is done to processes at one moment.

    `hold_s`: how long those that are stopped stay so, unless the server replaces them before.
    """

    signal: signal.Signals
    hold_s: float
    victims: list[psutil.Process]
    names: str

    def __str__(self) -> str:
        if self.signal == signal.SIGKILL:
            return f"killed {self.names}"
        return f"stopped {self.names} for {self.hold_s:.0f} s"


class Tormentor:
    """Kills and stops random processes of a server; starts it again when it has exited for that."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self.random = random.Random(seed)
        self.recoveries: list[tuple[str, float]] = []
        self.exits: list[tuple[str, float]] = []
        self.seen: set[psutil.Process] = set()

    def victims(self) -> dict[str, list[psutil.Process]]:
        """Processes that may be struck, by role; models together."""
        assert self._server.process is not None
        found: dict[str, list[psutil.Process]] = {role: [] for role in WEIGHTS}
        for process in tree(psutil.Process(self._server.process.pid)):
            self.seen.add(process)
            role = role_of(process)
            for prefix, kind in (("replica ", _MODEL), ("model ", _PROCESS)):
                if role.startswith(prefix) and role not in found:
                    role = kind
            found.get(role, []).append(process)
        return found

    def strike(self) -> None:
        """Strike one process, or two at the same moment, and wait until the server has them again."""
        victims = self.victims()
        blow = self._choose(victims)
        whole = {role: len(victims[role]) for role in (_INGRESS, _MANAGER, _CONTROLLER)}
        started = time.monotonic()
        for process in blow.victims:
            with suppress(psutil.NoSuchProcess):  # a model that was unloaded at this moment
                process.send_signal(blow.signal)
        # One that is ending may still have its connections.
        psutil.wait_procs(blow.victims, min(blow.hold_s, RECOVERY_S))
        for process in blow.victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        recovered = f"the server recovers, or exits: {blow}"
        wait_until(lambda: self._server.exited() or self._recovered(whole), RECOVERY_S, recovered)
        took = time.monotonic() - started
        if self._server.exited():
            self._start_again(str(blow), took)
        else:
            self.recoveries.append((str(blow), took))
            say(f"  {blow}: whole again after {took:.1f} s")

    def _choose(self, victims: dict[str, list[psutil.Process]]) -> Blow:
        number = self.random.choices((signal.SIGKILL, signal.SIGSTOP), (3, 1))[0]
        hold_s = RECOVERY_S if number == signal.SIGKILL else self.random.choice(HOLDS_S)
        roles = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=self.random.choice((1, 1, 1, 2)))
        chosen = {self.random.choice(victims[role]) for role in roles if victims[role]}
        return Blow(number, hold_s, list(chosen), " and ".join(sorted(map(role_of, chosen))))

    def _recovered(self, whole: dict[str, int]) -> bool:
        now = self.victims()
        return all(len(now[role]) >= n for role, n in whole.items()) and serves(self._server)

    def _start_again(self, why: str, took: float) -> None:
        """Start a server that has exited, as its supervisor would; nothing may be left of it."""
        assert self._server.process is not None
        status = self._server.process.returncode
        self.exits.append((why, took))
        say(f"  {why}: exit status {status} after {took:.1f} s")
        assert status, f"exit status 0, though it could not go on: {why}"
        left = psutil.wait_procs(self.seen, timeout=10)[1]
        assert not left, f"left behind: {[process.cmdline()[:2] for process in left]}"
        self.seen.clear()
        self._server.start()
        wait_until(lambda: serves(self._server), RECOVERY_S, "ready after another start")


def serves(server: Server) -> bool:
    """Whether every model of the mix is ready."""
    return server.ready() and all(server.model_ready(model) for model in MODELS)


def torment(server: Server, ledger: Ledger, duration: float, seed: int) -> Tormentor:
    """Strike one process after the other under load."""
    tormentor = Tormentor(server, seed)
    give_up = time.monotonic() + duration
    with Mix(server.http_url, server.grpc_url, ledger, KINDS, retry_s=RETRY_S):
        while time.monotonic() < give_up:
            time.sleep(tormentor.random.uniform(0.5, 4.0))
            try:
                tormentor.strike()
            except AssertionError as error:
                ledger.has_failed("recovery", str(error), wrong=True)
    return tormentor


def check_every_kind(server: Server) -> Iterator[str]:
    """Afterwards every kind of request comes right at the first try."""
    ledger = Ledger()
    mix = Mix(server.http_url, server.grpc_url, ledger, (), clients=0)
    client = Client(server.http_url, server.grpc_url, 0)
    for kind in (*KINDS, *MANAGEMENT):
        mix.attempt(client, kind)
    client.close()
    yield from (f"afterwards {failure}" for failure in ledger.failures)


def stop(server: Server, seen: set[psutil.Process], private: Path, others: set[Path]) -> Iterator[str]:
    """Stop the server; yields what is left of it. `others` was in shared memory before."""
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    status = server.process.wait(90)
    if status:
        yield f"the server exited with {status}"
    for process in psutil.wait_procs(seen, timeout=10)[1]:
        yield f"left behind: {process.pid} {' '.join(process.cmdline())[:80]}"
    yield from (f"left behind: {path}" for path in [*(shared_memory() - others), *leftovers(private)])


def shared_memory() -> set[Path]:
    """Files of ours in shared memory."""
    return {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("nereid", "soak-"))}


def leftovers(private: Path) -> list[Path]:
    """Files and sockets of ours that a stopped server has left, apart from what tells why one has ended."""
    directory = private / f"nereid-{os.getuid()}"
    kept = (directory / "ray", directory / "logs", private / "server.log")
    ours = [path for path in private.rglob("*") if not any(map(path.is_relative_to, kept))]
    return [path for path in ours if not path.is_dir()]


def run(duration: float, seed: int) -> list[str]:
    """Torment a server; returns what is wrong with it."""
    ledger, others = Ledger(), shared_memory()
    with started(INGRESS_REPLICAS) as (server, private):
        tormentor = torment(server, ledger, duration, seed)
        wrong = list(ledger.failures if ledger.success < SUCCESS else ledger.wrong)
        wrong += _attempt(lambda: wait_until(lambda: serves(server), RECOVERY_S, "ready at the end"))
        wrong += check_every_kind(server)
        tormentor.victims()  # sees those that came last
        wrong += stop(server, tormentor.seen, private, others)
    for line in (*ledger.lines(), *summary(tormentor)):
        say(line)
    return wrong


def _attempt(check: Callable[[], object]) -> list[str]:
    try:
        check()
    except AssertionError as error:
        return [str(error)]
    return []


def summary(tormentor: Tormentor) -> Iterator[str]:
    """The blows in words."""
    for what, found in (("whole again", tormentor.recoveries), ("exited", tormentor.exits)):
        times = sorted(took for _, took in found)
        if times:
            middle = times[len(times) // 2]
            yield f"  {len(times)} times {what}, after {middle:.1f} s (median), {times[-1]:.1f} s at most"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.chaos --seconds 240 --seed 7",
    )
    given = os.environ.get("CHAOS_SECONDS") or 600
    parser.add_argument("--seconds", type=float, default=given, help="CHAOS_SECONDS, or 600")
    seed = os.environ.get("CHAOS_SEED") or int(time.time())
    parser.add_argument("--seed", type=int, default=seed, help="CHAOS_SEED, or the time")
    options = parser.parse_args()
    say(f"CHAOS_SEED={options.seed}")
    wrong = run(options.seconds, options.seed)
    for line in wrong:
        say(f"FAILED: {line}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
