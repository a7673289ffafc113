"""What a rollout costs the requests that the stable version answers: their p99 with and without one.

python -m tests.long.rollout_latency --rounds 6 --seconds 15

In each round clients are answered by the stable version alone for some seconds, and then for as many seconds
beside a good candidate that has 20 % of the requests. Fails if any request does.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.long.rollouts import Load, ask, p99_ms, started, write
from tests.long.server import say
from tests.server import Server

STABLE: Final = 1
_SETTLE_S: Final = 3.0
"""After the start or the end of the candidate's process."""
_POLICY: Final[dict[str, Any]] = {"steps": [20], "step": {"min_seconds": 3600, "max_seconds": 7200}}


def seconds_of(load: Load, seconds: float) -> float:
    """Return the quantile of the requests of the next seconds, in milliseconds."""
    time.sleep(_SETTLE_S)
    begun = time.monotonic()
    time.sleep(seconds)
    return p99_ms(load.between(begun, begun + seconds), STABLE)


def change(server: Server, until: str, **body: Any) -> None:
    """Change the rollout of the model, and wait for a state.

    Raises:
        RuntimeError: another state, for a minute.
    """
    ask(server, "repository/models/m/rollout", body)
    deadline = time.monotonic() + 60
    while (status := ask(server, "models/m/rollout"))["state"] != until:
        if time.monotonic() > deadline:
            raise RuntimeError(f"state {status['state']}: {status['reason']}")
        time.sleep(0.2)


def measure(
    server: Server, load: Load, repository: Path, version: int, seconds: float
) -> tuple[float, float]:
    """Return the quantiles of one round, without a rollout and with one."""
    without = seconds_of(load, seconds)
    write(repository, version)
    change(server, "step", action="start", spec=_POLICY)
    beside = seconds_of(load, seconds)
    change(server, "aborted", action="abort")
    return without, beside


def main() -> int:
    """Measure the rounds; return 0 if no request failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0)
    given = parser.parse_args()
    ratios = []
    say("p99 without ms, p99 beside ms, ratio")
    with started() as (server, repository), Load(server) as load:
        for version in range(2, 2 + given.rounds):
            without, beside = measure(server, load, repository, version, given.seconds)
            ratios.append(beside / without)
            say(f"{without:.1f}, {beside:.1f}, {ratios[-1]:.2f}")
        bad = [event for event in load.events if event.result != "ok"]
        of_candidate = sum(event.version != str(STABLE) for event in load.events)
    say(f"{len(load.events)} requests, {of_candidate} answered by candidates, {len(bad)} failed or wrong")
    say(f"median ratio {statistics.median(ratios):.2f}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
