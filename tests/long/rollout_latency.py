"""What a rollout costs the requests that the stable version answers: their p50 and p99 with and without one.

python -m tests.long.rollout_latency --rounds 6 --seconds 15

Of each way to be asked there are two models with the same requests at the same time. In each round one of
them has a good candidate with 20 % of the requests, the other has none; in the next round it is the reverse.
Ends with 1 if the median of the ratios of their p50 or p99 is above the bound, or a request failed.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tests.long.plants import PLANTS
from tests.long.rollout_bench import Rollout, at_once, change, served
from tests.long.rollout_load import Load, Stream, bad, quantile_ms
from tests.long.rollout_models import WAYS, Candidate, Model
from tests.long.server import say
from tests.server import Server, wait_until

BOUND: Final = 1.3
_RATE: Final = 25.0
"""Requests a second to each of eight models."""
_SETTLE_S: Final = 3.0
"""After the start or the end of the candidate's process."""
_POLICY: Final[dict[str, Any]] = {
    "steps": [20],
    "step": {"min_seconds": 3600, "max_seconds": 7200},
    "judge": {"latency": None, "compute": None},
}
_STABLE: Final = 1


def measure(
    server: Server, repository: Path, pairs: list[list[Stream]], number: int, seconds: float
) -> list[tuple[float, float]]:
    """Return the ratios of one round, of p50 and p99, for each way."""
    rolled = [Model(f"m{number % 2}_{way}", way) for way in WAYS]
    rollouts = [Rollout(server, model) for model in rolled]
    at_once(partial(each.start, repository, number + 2, Candidate(), _POLICY) for each in rollouts)
    time.sleep(_SETTLE_S)
    begun = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    time.sleep(1)
    at_once(partial(change, server, model.name, "abort") for model in rolled)
    for rollout in rollouts:
        wait_until(lambda each=rollout: each.look() == "aborted", 60, "the rollout is aborted")  # type: ignore[misc]
    found = []
    for way, pair in zip(WAYS, pairs, strict=True):
        ratios = []
        for quantile in (0.5, 0.99):
            beside, without = (
                quantile_ms(pair[each].between(begun, ended), _STABLE, quantile)
                for each in (number % 2, 1 - number % 2)
            )
            ratios.append(beside / without)
            name = f"p{quantile * 100:.0f}"
            say(f"| {number} | {way} | {name} | {without:.1f} | {beside:.1f} | {ratios[-1]:.2f} |")
        found.append((ratios[0], ratios[1]))
    return found


def main() -> int:
    """Measure the rounds; return 0 if the ratio is within its bound and no request failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--plant", default="", choices=list(PLANTS), help="a fault that is to be found")
    given = parser.parse_args()
    models = [[Model(f"m{each}_{way}", way) for each in range(2)] for way in WAYS]
    pairs = [[Stream(model.asked, model.way, _RATE) for model in pair] for pair in models]
    streams = list(chain(*pairs))
    ratios: list[tuple[float, float]] = []
    with (
        served(chain(*models), given.plant) as (server, repository),
        Load(server.http_url, server.grpc_url, streams),
    ):
        say("| round | by | of | without ms | beside ms | ratio |\n|---|---|---|---|---|---|")
        for number in range(given.rounds):
            ratios += measure(server, repository, pairs, number, given.seconds)
    events = [event for stream in streams for event in stream.events]
    faults = sum(bad(events), bad([])[0])
    by_candidates = sum(event.version != _STABLE for event in events)
    say(f"{len(events)} requests, {by_candidates} answered by candidates, {faults.total()} failed or wrong")
    for text, count in faults.items():
        say(f"    {count} times {text}")
    medians = [statistics.median(each) for each in zip(*ratios, strict=True)]
    say(f"median ratios {medians[0]:.2f} of p50 and {medians[1]:.2f} of p99, at most {BOUND:g}")
    return 1 if faults or not max(medians) <= BOUND else 0


if __name__ == "__main__":
    sys.exit(main())
