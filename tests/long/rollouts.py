"""Rolls out candidates that are bad in different ways under load, and prints what clients saw of each.

python -m tests.long.rollouts --only hangs --only missing
python -m tests.long.rollouts --only missing --plant missing-output    # has to end with 1

Each candidate gets 5 % of the requests of four models, 200 a second in total: one is asked over HTTP, one
over gRPC, one by an ensemble and one by a Python model. For each: how the rollout ended and after how many
seconds, how many requests the candidate failed, the errors and wrong answers that clients saw, and the stable
version's p99 before and beside the candidate. Ends with 1 if a candidate was not rolled back in time, a
client saw an error or a wrong answer, or the good candidate was not promoted.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.long.rollout_bench import Rollout, at_once, change, served
from tests.long.rollout_load import Load, Stream, bad, quantile_ms
from tests.long.rollout_models import CANDIDATES, WAYS, Model
from tests.long.rollout_plants import PLANTS
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


def roll_out(
    server: Server, repository: Path, model: Model, stream: Stream, version: int, name: str, plant: str
) -> Row:
    """Roll one candidate of one model out; return how that went."""
    candidate = CANDIDATES[name]
    if plant == WRONG:
        candidate = candidate._replace(answer=f"{candidate.answer}; out['OUT'] = x * 2")
    stream.deadline_s = candidate.deadline_s
    quiet, stable = time.monotonic(), 0
    time.sleep(_QUIET_S)
    longest = 2 * candidate.limit_s
    step = {"min_seconds": longest, "max_seconds": longest, "min_requests": 0}
    rollout = Rollout(server, model)
    rollout.start(repository, version, candidate, {**POLICY, "step": step, **candidate.policy})
    stable, deadline = rollout.status["stable"], rollout.begun + candidate.limit_s + _LATE_S
    while not rollout.over and time.monotonic() < deadline:
        time.sleep(0.5)
        rollout.look()
    begun, ended, state = rollout.begun, time.monotonic(), rollout.status["state"]
    if rollout.over:
        ended = rollout.ended
        time.sleep(_QUIET_S)
    else:
        change(server, model.name, "abort")
    _await_answers(stream, ended)
    seen = stream.between(quiet, ended + _QUIET_S)
    errors, wrong = bad(seen)
    counts = rollout.status["total"]["candidate"]
    failed = f"{counts.get('failed', 0)}, {counts.get('failed', 0) + counts.get('ok', 0)}"
    return Row(
        *(name, model.way, state, max(0.0, ended - begun), failed, errors.total(), wrong.total()),
        quantile_ms(stream.between(quiet, quiet + _QUIET_S)),
        quantile_ms(stream.between(begun, ended), stable),
        rollout.status["reason"],
        errors + wrong,
    )


def _await_answers(stream: Stream, before: float) -> None:
    """Wait for requests that were sent before a time; those without a deadline are given up at some time."""
    while stream.unanswered(before):
        time.sleep(0.1)


class Bench(NamedTuple):
    """A server with a model for each way, and the requests to each."""

    server: Server
    repository: Path
    models: list[Model]
    streams: list[Stream]

    def roll_out(self, name: str, version: int, plant: str) -> list[Row]:
        """Roll a candidate out in all its ways at once; print and return how that went."""
        candidate = CANDIDATES[name]
        pairs = zip(self.models, self.streams, strict=True)
        calls = [
            partial(self._roll_out, model, stream, version, name, plant)
            for model, stream in pairs
            if model.way in candidate.ways
        ]
        rows: list[Row] = [call() for call in calls] if candidate.alone else at_once(calls)
        for row in rows:
            for line in row.lines():
                say(line)
        for stream in self.streams:
            stream.events.clear()
        return rows

    def _roll_out(self, model: Model, stream: Stream, version: int, name: str, plant: str) -> Row:
        """Roll a candidate out, perhaps with the requests of all models."""
        before = [each.rate for each in self.streams]
        if CANDIDATES[name].alone:
            for each in self.streams:
                each.rate = sum(before) if each is stream else 0
        try:
            return roll_out(self.server, self.repository, model, stream, version, name, plant)
        finally:
            for each, rate in zip(self.streams, before, strict=True):
                each.rate = rate


@contextmanager
def started(slow: bool, rate: float, plant: str) -> Iterator[Bench]:
    """Start a server and the requests."""
    models = [Model(f"m_{way}", way, slow) for way in WAYS]
    streams = [Stream(model.asked, model.way, rate) for model in models]
    with (
        served(models, plant) as (server, repository),
        Load(server.http_url, server.grpc_url, streams),
    ):
        yield Bench(server, repository, models, streams)


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
            with started(slow, given.rate / len(WAYS), given.plant) as bench:
                for version, name in enumerate(alike, start=2):
                    rows += bench.roll_out(name, version, given.plant)
    faults = sum(bool(row.faults) for row in rows)
    say(f"{len(rows)} rollouts, {faults} not as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
