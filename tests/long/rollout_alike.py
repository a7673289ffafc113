"""Rolls out versions that are identical to the stable ones, while load changes by five times: none is worse.

python -m tests.long.rollout_alike --models 20 --rounds 10

All models are rolled out at once, one version after another, on a machine that other processes keep busy.
Ends with 1 if more than one of 200 was rolled back, another ended otherwise than it should, or a client saw
an error or a wrong answer.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.long.client_threads import ClientThreads
from tests.long.plants import PLANTS
from tests.long.rollout_bench import Rollout, at_once, served
from tests.long.rollout_load import Load, Stream, bad
from tests.long.rollout_models import Candidate, Model
from tests.long.server import say
from tests.server import Server

# An alarm about durations needs 31 intervals; one has 20 answers of the stable version, and lasts a second.
POLICY: Final[dict[str, Any]] = {
    "steps": [20],
    "step": {"min_seconds": 120, "min_requests": 50, "max_seconds": 600},
    "keep_stable_seconds": 10,
}
_TIMES: Final = 5.0
"""By which the load changes."""
_EACH_S: Final = 7.0
"""Seconds between two changes."""
_MOST_S: Final = 400.0
"""What a rollout may take."""
_ALLOWED: Final = 1
"""Rolled back, of 200."""


class Alike:
    """The rollouts of a run, and what became of them."""

    def __init__(self, server: Server, repository: Path, total: int) -> None:
        self._server = server
        self._repository = repository
        self._total = total
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self.ended: list[str] = []
        self.faults: list[str] = []

    def run(self, model: Model, rounds: int, until: float) -> None:
        """Roll versions of one model out, one after another."""
        for version in range(2, rounds + 2):
            if time.monotonic() > until:
                return
            try:
                self._count(model, version, *self._roll_out(model, version))
            except Exception as error:
                self._count(model, version, "not started", repr(error))

    def _roll_out(self, model: Model, version: int) -> tuple[str, str]:
        rollout = Rollout(self._server, model)
        rollout.start(self._repository, version, Candidate(), POLICY)
        deadline = time.monotonic() + _MOST_S
        while not rollout.over and time.monotonic() < deadline:
            time.sleep(2)
            rollout.look()
        return rollout.status["state"], rollout.status["reason"]

    def _count(self, model: Model, version: int, state: str, reason: str) -> None:
        with self._lock:
            self.ended.append(state)
            if state != "done":
                self.faults.append(state)
                say(f"    {model.name} to version {version} ended as {state}: {reason[:400]}")
            if len(self.ended) % 10 == 0:
                seconds = time.monotonic() - self._begun
                say(f"{len(self.ended)} of {self._total} after {seconds:.0f} s: {len(self.faults)} not done")


class Changes(ClientThreads):
    """Changes the rate of all streams again and again."""

    def __init__(self, streams: list[Stream]) -> None:
        self._streams = streams
        super().__init__([self._run], _EACH_S)

    def _run(self) -> None:
        factor = _TIMES
        while not self.stop.wait(_EACH_S):
            for stream in self._streams:
                stream.rate *= factor
            factor = 1 / factor


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep processors busy."""
    spin = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second to each model, at first")
    parser.add_argument("--busy", type=int, default=1, help="processes that only keep processors busy")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no rollout begins")
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    return parser.parse_args()


def main() -> int:
    """Roll out; return 0 if nearly all were promoted."""
    given = _arguments()
    models = [Model(f"m{number}", ("http", "grpc")[number % 2]) for number in range(given.models)]
    streams = [Stream(model.asked, model.way, given.rate) for model in models]
    until = time.monotonic() + given.seconds
    with served(models, given.plant) as (server, repository):
        alike = Alike(server, repository, given.models * given.rounds)
        load = Load(server.http_url, server.grpc_url, streams)
        with load, Changes(streams), busy(given.busy):
            at_once(partial(alike.run, model, given.rounds, until) for model in models)
    errors, wrong = bad(event for stream in streams for event in stream.events)
    requests = sum(len(stream.events) for stream in streams)
    say(f"{requests} requests, {errors.total()} failed, {wrong.total()} wrong")
    for text, count in (errors + wrong).items():
        say(f"    {count} times {text}")
    rolled_back = alike.faults.count("failed")
    say(f"{len(alike.ended)} rollouts, {len(alike.faults)} not done, {rolled_back} rolled back")
    others = len(alike.faults) - rolled_back
    return 1 if errors or wrong or others or rolled_back > _ALLOWED or not alike.ended else 0


if __name__ == "__main__":
    sys.exit(main())
