"""Whether `nereid plan` tells what a model answers at most, and its p99 at 70 % of that.

    python -m tests.long.plan                             three models, two kinds of arrivals, 40 minutes
    python -m tests.long.plan --only batching --turns 1   one model, once

Each turn measures how much the model answers at most, plans for 70 % of it, and then asks for that rate by an
open loop of other seeds: by chance, or in the bursts of a tape that a server has recorded. A machine's speed
changes by a tenth within a minute, and a p99 by much more than the speed, so turns are judged together: the
median of told by measured must be within 10 % for the most it answers, and within 15 % for the p99, in five
of six cells.
"""

import argparse
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from nereid_client.tape.reader import Tape
from nereid_client.tools.plan.arrivals import recorded
from tests.long.promises import nereid, served
from tests.long.server import say
from tests.server import Server

MODELS: Final = ("random", "batching", "efficientnet_lite0_onnx")
SHARE: Final = 0.7
SATURATION, P99, CELLS_MISSED = 0.10, 0.15, 1
LOOP_S, LOAD_S = 4.0, 25.0
IN_FLIGHT: Final = 64
SLO: Final = "p99<60000ms"
"""One replica is to be told of, whatever it does."""
RECORDED: Final = 3000
"""Requests of a tape."""
BUSY, CALM, STRETCH = 1.5, 0.5, 20
"""A tape's rate in stretches of so many requests, beside its mean."""


class Turn(NamedTuple):
    """What was told, by what was measured."""

    saturation: float
    p99: float


class Recorded(NamedTuple):
    """A tape, and its requests a second."""

    directory: Path
    rate: float


def write_pauses(path: Path, rate: float, seed: int) -> Path:
    """Write pauses in microseconds: stretches of a busy and of a calm rate, requests by chance in both."""
    random = np.random.default_rng(seed)
    rates = np.repeat(random.permuted([BUSY, CALM] * (RECORDED // STRETCH // 2)), STRETCH)
    pauses = random.exponential(1 / rates)
    path.write_text("\n".join(f"{each:.0f}" for each in pauses / pauses.mean() * (1e6 / rate)))
    return path


def measured(*words: str) -> dict[str, Any]:
    """Return what `nereid perf` says of its one level."""
    _, document = nereid("perf", *words)
    assert document is not None
    level: dict[str, Any] = document["levels"][0]
    assert not level["failed"], level
    return level


def closed(model: str, server: Server) -> float:
    """Return what a closed loop is answered, in requests a second."""
    words = (f"--concurrency={IN_FLIGHT}", f"--duration={LOOP_S:g}")
    return float(measured("-m", model, "-u", server.http_url, *words)["rate"])


def record(model: str, place: Path) -> Recorded:
    """Have a server record requests that come in bursts, at a third of what it answers."""
    directory = place / f"tape-{model}"
    with served(model, False, f"--tape={directory}", "--tape-rate=0") as server:
        most = closed(model, server)
        setting = f"http://{server.http_url}/v2/models/{model}/tape/setting"
        urllib.request.urlopen(urllib.request.Request(setting, json.dumps({"rate": 1}).encode())).close()
        pauses = write_pauses(place / "recorded", SHARE / 2 * most, 0)
        words = (f"--request-intervals={pauses}", f"--request-count={RECORDED}", "--warmup=0")
        measured("-m", model, "-u", server.http_url, *words)
    with Tape(directory) as tape:
        return Recorded(directory, recorded(tape.rows(models=[model]), batched=False).rate)


def turn(model: str, server: Server, place: Path, tape: Recorded | None, number: int) -> Turn:
    """Plan, measure, and say both."""
    before = closed(model, server)
    rate = SHARE * before
    common = ("-m", model, "-u", server.http_url)
    if tape is None:
        traffic: tuple[str, ...] = (f"--rate={rate:g}",)
        arrivals: tuple[str, ...] = (f"--rate={rate:g}", f"--random-seed={number}")
    else:
        traffic = (f"--tape={tape.directory}", f"--times={rate / tape.rate:g}")
        arrivals = (f"--request-intervals={write_pauses(place / f'pauses{number}', rate, number)}",)
    _, plan = nereid("plan", *common, "--slo", SLO, *traffic)
    assert plan is not None
    told = next(each["p99_ms"] for each in plan["outcomes"] if each["replicas"] == 1)
    p99 = measured(*common, *arrivals, f"--duration={LOAD_S:g}")["latency"]["percentiles"]["p99"]
    most = (before + closed(model, server)) / 2
    found = Turn(plan["saturation"] / most, told / p99)
    say(
        f"  {model}, {'by chance' if tape is None else 'tape'}: at most {plan['saturation']:.4g}/s told of "
        f"{most:.4g} ({found.saturation:.2f}), p99 at {rate:.4g}/s {told:.4g} ms told of {p99:.4g} "
        f"({found.p99:.2f})"
    )
    return found


def checked(model: str, place: Path, turns: int) -> list[bool]:
    """Tell what the turns of a model show; return for both kinds of arrivals whether it is right."""
    tape = record(model, place)
    found: dict[str, list[Turn]] = {"by chance": [], "tape": []}
    with served(model) as server:
        for number in range(1, turns + 1):
            for kind, taken in found.items():
                taken.append(turn(model, server, place, tape if kind == "tape" else None, number))
    right = []
    for kind, taken in found.items():
        saturation, p99 = (statistics.median(column) for column in zip(*taken, strict=True))
        right.append(abs(saturation - 1) <= SATURATION and abs(p99 - 1) <= P99)
        verdict = "right" if right[-1] else "WRONG"
        say(f"{verdict} {model}, {kind}: told by measured at most {saturation:.3f}, p99 {p99:.3f} (medians)")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(MODELS), metavar="MODEL,MODEL")
    parser.add_argument("--turns", type=int, default=5, help="of each kind of arrivals (5)")
    given = parser.parse_args()
    right: list[bool] = []
    with tempfile.TemporaryDirectory() as directory:
        for model in given.only.split(","):
            right += checked(model, Path(directory), given.turns)
    say(f"{sum(right)} of {len(right)} are right")
    return 0 if right.count(False) <= CELLS_MISSED else 1


if __name__ == "__main__":
    sys.exit(main())
