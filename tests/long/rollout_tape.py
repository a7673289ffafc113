"""Rolls candidates out that have to answer recorded requests first, while manager and ingresses are killed.

For each: what was killed while the tape was repeated, how that ended and after how many seconds, how many of
the rows it was decided by, how many requests of clients the candidate answered until then, and the errors
and wrong answers that clients saw. Ends with 1 if a candidate that is wrong on one of twenty got a request, a
good one did not get its share within a minute, rows were counted twice, or clients saw a wrong answer.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.long.rollout_bench import Rollout, change, served
from tests.long.rollout_load import Load, Stream, bad
from tests.long.rollout_models import Candidate, Model
from tests.long.server import say
from tests.server import Server, wait_until

_MODEL: Final = Model("m", "http")
_MANAGER, _INGRESS = "nereid:repository-manager", "nereid:ingress"
_RATES: Final = {"http": 120.0, "grpc": 120.0}
_ROWS: Final = 2000
_GOOD_S: Final = 60.0
_RECORD_S: Final = 14.0
"""Seconds in which more rows are recorded than are repeated."""
_WAIT_S: Final = 200.0
_NAMED: Final = {"BY": "ignore"}
"""By which each version answers its own number."""
_POLICY: Final[dict[str, Any]] = {
    "tape": {"requests": _ROWS, "in_flight": 2, "max_seconds": 150, "required": True},
    "judge": {"output": {"min_agreement": 0.99, "outputs": _NAMED}},
    "steps": [50],
    "step": {"min_seconds": 3600, "max_seconds": 7200},
}
GOOD: Final = "pass"
WRONG: Final = "out['OUT'] = x if self.asked % 20 else x * 2"


class Case(NamedTuple):
    """A candidate, what is killed while it answers the tape, and the state that follows."""

    name: str
    answer: str
    kills: tuple[str, ...]
    ends: str
    policy: dict[str, Any] = {}


_KILLS: Final[tuple[tuple[str, ...], ...]] = ((), (_MANAGER,), (_INGRESS,), (_MANAGER, _INGRESS))
_SHORT: Final[dict[str, Any]] = {
    "tape": {"requests": 5000, "in_flight": 1, "max_seconds": 3, "required": True},
    "judge": {"output": {"min_agreement": 0.999, "outputs": _NAMED}},
}
CASES: Final = (
    *(Case("good", GOOD, kills, "step") for kills in _KILLS),
    *(Case("wrong, 5 %", WRONG, kills, "failed") for kills in _KILLS),
    Case("wrong, no rules", WRONG, (), "paused", {"judge": {}}),
    Case("too few rows", GOOD, (), "paused", _SHORT),
)


class Row(NamedTuple):
    """What became of a case."""

    case: Case
    state: str
    seconds: float
    repeated: int
    reached: int
    errors: int
    wrong: int
    reason: str

    @property
    def faults(self) -> list[str]:
        """What is not as it should be."""
        killed_ingress = _INGRESS in self.case.kills
        found = {
            f"it ended as {self.state}, not {self.case.ends}": self.state != self.case.ends,
            f"it took longer than {_GOOD_S:g} s": self.case.ends == "step" and self.seconds > _GOOD_S,
            "the candidate was asked by clients": self.reached,
            "rows were counted twice": self.repeated > _ROWS,
            "clients saw wrong answers": self.wrong,
            "clients saw errors": self.errors and not killed_ingress,
        }
        return [text for text, is_so in found.items() if is_so]

    @property
    def line(self) -> str:
        """The row of a Markdown table."""
        killed = ", ".join(each.partition(":")[2] for each in self.case.kills) or "-"
        cells = (self.case.name, killed, self.state, f"{self.seconds:.1f}", self.repeated, self.reached)
        return f"| {' | '.join(map(str, (*cells, self.errors, self.wrong, self.reason[:120])))} |"


HEADER: Final = """\
| candidate | killed | then | s | rows repeated | asked by clients | errors | wrong | why |
|---|---|---|---|---|---|---|---|---|"""


def strike(server: Server, titles: tuple[str, ...]) -> None:
    """Kill one replica of each."""
    for title in titles:
        os.kill(server.replicas(title)[0], signal.SIGKILL)


def watch(server: Server, rollout: Rollout, case: Case) -> None:
    """Wait until the tape was judged; kill once some of it is counted."""
    kills, deadline = case.kills, time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        state = rollout.look()
        if state not in ("loading", "tape", "rolling_back") and rollout.status.get("history"):
            return
        tape = rollout.status.get("tape") or {}
        if kills and (state == "rolling_back" or tape.get("tapes")):
            strike(server, kills)
            kills = ()
        time.sleep(0.1)


def roll_out(
    server: Server, repository: Path, streams: list[Stream], case: Case, version: int, rows: int
) -> Row:
    """Roll one candidate out; return how it went."""
    begun = time.monotonic()
    time.sleep(_RECORD_S if rows else 1.0)
    rollout = Rollout(server, _MODEL)
    rollout.start(repository, version, Candidate(case.answer), {**_POLICY, **case.policy})
    watch(server, rollout, case)
    status = rollout.status
    taped = [event["at"] for event in status["history"] if event["state"] == "tape"]
    left = [event for event in status["history"] if event["at"] > (taped or [0])[0]]
    live = next((event["at"] for event in left if event["percent"] > 0), time.time())
    until = live - time.time() + time.monotonic()
    answered = [event for stream in streams for event in stream.between(begun, until)]
    errors, _ = bad(answered)
    events = [event for stream in streams for event in stream.between(begun, time.monotonic())]
    mirror = (status.get("tape") or {}).get("mirror", {})
    row = Row(
        case,
        status["state"],
        (left[0]["at"] if left else time.time()) - (taped or [time.time()])[0],
        mirror.get("compared", 0) + mirror.get("failed", 0),
        sum(event.version == version and event.begun < until for event in events),
        errors.total(),
        bad(events)[1].total(),
        status["reason"],
    )
    if status["state"] in ("step", "paused"):
        change(server, "m", "abort")
    wait_until(lambda: rollout.look() in ("failed", "aborted"), 60, "the candidate is gone")
    wait_until(lambda: len(server.replicas(_INGRESS)) == 2, 60, "both ingresses")
    return row


def main() -> int:
    """Run the cases; return 0 if all went as they should."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.rollout_tape",
    )
    parser.add_argument("--only", action="append", choices=sorted({case.name for case in CASES}))
    only = parser.parse_args().only
    streams = [Stream("m", way, rate) for way, rate in _RATES.items()]
    faults = 0
    with tempfile.TemporaryDirectory(prefix="t") as tape:
        os.chmod(tape, 0o700)
        flags = (f"--tape={tape}", "--tape-rate=1", "--ingress-replicas=2")
        with (
            served([_MODEL], "", *flags) as (server, repository),
            Load(server.http_url, server.grpc_url, streams),
        ):
            say(HEADER)
            for version, case in enumerate(CASES, start=2):
                if only is None or case.name in only:
                    row = roll_out(server, repository, streams, case, version, _ROWS)
                    say(row.line)
                    for fault in row.faults:
                        say(f"    FAULT {fault}")
                    faults += bool(row.faults)
    say(f"{faults} not as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
