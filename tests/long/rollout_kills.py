"""Kills the repository manager in ten states of a rollout under load, and prints how the next one goes on.

For every state: the state and weight before and after, the seconds until a new manager answers, and the
errors that clients saw. Ends with 1 if a rollout did not go on, or a client saw an error.
"""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.long.rollout_bench import ask, served
from tests.long.rollout_load import Load, Stream, bad
from tests.long.rollout_models import Candidate, Model
from tests.long.server import say
from tests.server import Server, wait_until

_MODEL: Final = Model("m", "grpc")
_RATES: Final = {"http": 50.0, "grpc": 50.0}
_MANAGER: Final = "nereid:repository-manager"
_SLOW: Final = "import time; time.sleep(6)"
_STAYS: Final[dict[str, Any]] = {
    "steps": [20],
    "step": {"min_seconds": 3600, "max_seconds": 7200},
    "keep_stable_seconds": 3600,
}
_WAIT_S: Final = 60.0


class Kill(NamedTuple):
    """One kill: what is done before it, the state then, and the state that the next manager brings about."""

    prepare: Callable[[Server, Path], object]
    before: str
    after: tuple[str, float]


def change(action: str, **fields: Any) -> Callable[[Server, Path], object]:
    """Return a preparation that changes the rollout."""
    return lambda server, _: ask(server, "repository/models/m/rollout", {"action": action, **fields})


def start(
    version: int, wait: bool = True, load: str = "pass", **spec: Any
) -> Callable[[Server, Path], object]:
    """Return a preparation that writes a version, if it is new, and starts its rollout."""

    def prepare(server: Server, repository: Path) -> None:
        if not (repository / "m" / str(version)).exists():
            _MODEL.write(repository, version, Candidate(load=load))
        begin = threading.Thread(
            target=change("start", spec={**_STAYS, **spec}), args=(server, repository), daemon=True
        )
        begin.start()
        if wait:
            begin.join(_WAIT_S)

    return prepare


KILLS: Final = (
    Kill(start(2, wait=False, load=_SLOW), "loading", ("step", 20)),
    Kill(lambda *_: None, "step", ("step", 20)),
    Kill(change("set", weight=60), "step", ("step", 60)),
    Kill(change("pause"), "paused", ("paused", 60)),
    Kill(change("promote"), "promoted", ("promoted", 100)),
    Kill(change("abort"), "rolling_back", ("aborted", 0)),
    Kill(lambda *_: None, "aborted", ("aborted", 0)),
    Kill(start(3, mirror=20), "shadow", ("shadow", 0)),
    Kill(start(4, load="raise ValueError('no weights')"), "failed", ("failed", 0)),
    Kill(start(5, steps=[], keep_stable_seconds=0), "done", ("done", 100)),
)


def status(server: Server) -> tuple[str, float]:
    """Return state and weight; "" without an answer."""
    found = ask(server, "models/m/rollout")
    return found.get("state", ""), found.get("percent", 0)


def strike(server: Server, repository: Path, streams: list[Stream], kill: Kill) -> bool:
    """Kill the manager in one state; print and return whether its successor goes on."""
    kill.prepare(server, repository)
    wait_until(lambda: status(server)[0] == kill.before, _WAIT_S, f"the rollout is {kill.before}")
    before = status(server)
    (victim,) = server.replicas(_MANAGER)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: server.replicas(_MANAGER) not in ([], [victim]), _WAIT_S, "a new manager")
    wait_until(lambda: status(server)[0] != "", _WAIT_S, "the new manager answers")
    back = time.monotonic() - killed
    try:
        wait_until(lambda: status(server) == kill.after, _WAIT_S, f"it is {kill.after}")
    except AssertionError:
        say(f"expected {kill.after}")
    after = status(server)
    found = bad(event for stream in streams for event in stream.between(killed, time.monotonic()))
    errors = found[0] + found[1]
    say(f"| {before[0]} {before[1]:g} % | {after[0]} {after[1]:g} % | {back:.1f} | {errors.total()} |")
    for text, count in errors.items():
        say(f"    {count} times {text}")
    return after == kill.after and not errors


def main() -> int:
    """Kill in each state; return 0 if all went on."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m tests.long.rollout_kills",
    ).parse_args()
    streams = [Stream("m", way, rate) for way, rate in _RATES.items()]
    with (
        served([_MODEL]) as (server, repository),
        Load(server.http_url, server.grpc_url, streams),
    ):
        say("| killed in | then | manager back s | errors |\n|---|---|---|---|")
        good = [strike(server, repository, streams, kill) for kill in KILLS]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
