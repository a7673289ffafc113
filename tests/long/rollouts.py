"""Rolls out candidates that are bad in different ways under load, and prints what clients saw of each.

python -m tests.long.rollouts --only hangs --only missing
python -m tests.long.rollouts --only missing --plant missing-output    # has to end with 1

Each candidate gets 5 % of the requests of four models, 200 a second in total: one is asked over HTTP, one
over gRPC, one by an ensemble and one by a Python model; where durations are the fault, one model is asked in
all of these ways. For each: how the rollout ended and after how many seconds, how many requests the candidate
failed, the errors and wrong answers that clients saw, and the stable version's p99 before and beside the
candidate. Ends with 1 if a candidate was not rolled back in time, a client saw an error or a wrong answer, or
the good candidate was not promoted.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.long.plants import PLANTS
from tests.long.rollout_bench import Rollout, at_once, change, served
from tests.long.rollout_load import Event, Load, Stream, bad, quantile_ms
from tests.long.rollout_models import CANDIDATES, WAYS, Candidate, Model
from tests.long.server import say
from tests.server import Server

POLICY: Final[dict[str, Any]] = {"steps": [5], "keep_stable_seconds": 4}
WRONG: Final = "wrong-answers"
"""A fault that is planted in the candidate."""
_QUIET_S: Final = 4.0
"""What is looked at before a candidate, and waited after it."""
_LATE_S: Final = 15.0
"""How long over its limit a rollout is watched."""


class Row(NamedTuple):
    """What became of one candidate that was asked in one way."""

    name: str
    way: str
    state: str
    seconds: float
    failed: str
    errors: int
    wrong: int
    before_ms: float
    beside_ms: float
    reason: str
    texts: Mapping[str, int]

    @property
    def faults(self) -> list[str]:
        """What is not as it should be."""
        expected = CANDIDATES[self.name]
        found = {
            f"it ended as {self.state}, not {expected.ends}": self.state != expected.ends,
            f"it took longer than {expected.limit_s:g} s": self.seconds > expected.limit_s,
            "clients saw errors": self.errors and not expected.errors,
            "clients saw wrong answers": self.wrong,
        }
        return [text for text, is_so in found.items() if is_so]

    def lines(self) -> Iterator[str]:
        """Return the row as a line of a Markdown table, and what is wrong below it."""
        cells = (
            *(self.name, self.way, self.state, f"{self.seconds:.1f}", self.failed, self.errors, self.wrong),
            *(f"{self.before_ms:.1f}", f"{self.beside_ms:.1f}", self.reason.split("\n")[0][:110]),
        )
        yield f"| {' | '.join(map(str, cells))} |"
        yield from (f"    FAULT {fault}" for fault in self.faults)
        if self.faults:
            yield from (f"    {count} times {text}" for text, count in self.texts.items())


HEADER: Final = """\
| candidate | by | ended | s | failed, of | errors | wrong | p99 before ms | p99 beside ms | why |
|---|---|---|---|---|---|---|---|---|---|"""


class Asked(NamedTuple):
    """A model that is asked in one way, or in all of them."""

    way: str
    model: Model
    streams: list[Stream]

    def between(self, begun: float, ended: float) -> list[Event]:
        """Return the requests that were sent in a time."""
        return [event for stream in self.streams for event in stream.between(begun, ended)]

    def await_answers(self, before: float) -> None:
        """Wait for requests that were sent before a time; those without a deadline end after a minute."""
        while any(stream.unanswered(before) for stream in self.streams):
            time.sleep(0.1)


class Bench(NamedTuple):
    """A server, what is asked of it, and the fault that is planted in it."""

    server: Server
    repository: Path
    asked: list[Asked]
    plant: str

    def roll_out(self, name: str, version: int) -> list[Row]:
        """Roll a candidate out in all its ways at once; print and return how that went."""
        candidate = CANDIDATES[name]
        asked = [each for each in self.asked if each.way in candidate.ways or candidate.slow]
        calls = [partial(self._roll_out, each, version, name) for each in asked]
        rows: list[Row] = [call() for call in calls] if candidate.alone else at_once(calls)
        for row in rows:
            for line in row.lines():
                say(line)
        for stream in self.streams:
            stream.events.clear()
        return rows

    @property
    def streams(self) -> list[Stream]:
        """All requests."""
        return list(chain(*(each.streams for each in self.asked)))

    def _roll_out(self, asked: Asked, version: int, name: str) -> Row:
        """Roll a candidate of one model out, perhaps with the requests of all; return how that went."""
        candidate = CANDIDATES[name]
        before = [stream.rate for stream in self.streams]
        for stream in self.streams if candidate.alone else ():
            stream.rate = sum(before) if stream in asked.streams else 0
        try:
            return self._watch(asked, version, name, candidate)
        finally:
            for stream, rate in zip(self.streams, before, strict=True):
                stream.rate = rate

    def _watch(self, asked: Asked, version: int, name: str, candidate: Candidate) -> Row:
        if self.plant == WRONG:
            candidate = candidate._replace(answer=f"{candidate.answer}; out['OUT'] = x * 2")
        for stream in asked.streams:
            stream.deadline_s = candidate.deadline_s
        quiet = time.monotonic()
        time.sleep(_QUIET_S)
        rollout = Rollout(self.server, asked.model)
        rollout.start(self.repository, version, candidate, _policy(candidate))
        deadline = rollout.begun + candidate.limit_s + _LATE_S
        while not rollout.over and time.monotonic() < deadline:
            time.sleep(0.5)
            rollout.look()
        begun, ended = rollout.begun, rollout.ended if rollout.over else time.monotonic()
        if rollout.over:
            time.sleep(_QUIET_S)
        else:
            change(self.server, asked.model.name, "abort")
        asked.await_answers(ended)
        errors, wrong = bad(asked.between(quiet, ended + _QUIET_S))
        status, counts = rollout.status, rollout.status["total"]["candidate"]
        failed = f"{counts.get('failed', 0)}, {counts.get('failed', 0) + counts.get('ok', 0)}"
        return Row(
            *(name, asked.way, status["state"], max(0.0, ended - begun), failed),
            *(errors.total(), wrong.total()),
            quantile_ms(asked.between(quiet, quiet + _QUIET_S)),
            quantile_ms(asked.between(begun, ended), status["stable"]),
            status["reason"],
            errors + wrong,
        )


def _policy(candidate: Candidate) -> dict[str, Any]:
    longest = 2 * candidate.limit_s
    step = {"min_seconds": longest, "max_seconds": longest, "min_requests": 0}
    return {**POLICY, "step": step, **candidate.policy}


@contextmanager
def started(slow: bool, rate: float, plant: str) -> Iterator[Bench]:
    """Start a server and the requests: to a model for each way, or to one in all ways."""
    models = [Model("m" if slow else f"m_{way}", way, slow) for way in WAYS]
    streams = [Stream(model.asked, model.way, rate / len(WAYS)) for model in models]
    pairs = zip(models, streams, strict=True)
    asked = [Asked(model.way, model, [stream]) for model, stream in pairs]
    if slow:
        asked = [Asked("all ways", models[0], streams)]
    with (
        served(models, plant) as (server, repository),
        Load(server.http_url, server.grpc_url, streams),
    ):
        yield Bench(server, repository, asked, plant)


def main() -> int:
    """Run the candidates; return 0 if all went as they should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=list(CANDIDATES))
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second in total")
    parser.add_argument("--plant", default="", choices=[*PLANTS, WRONG], help="a fault that is to be found")
    given = parser.parse_args()
    names = given.only or list(CANDIDATES)
    rows = []
    say(HEADER)
    for slow in (False, True):
        alike = [name for name in names if CANDIDATES[name].slow == slow]
        if alike:
            with started(slow, given.rate, given.plant) as bench:
                for version, name in enumerate(alike, start=2):
                    rows += bench.roll_out(name, version)
    faults = sum(bool(row.faults) for row in rows)
    say(f"{len(rows)} rollouts, {faults} not as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
