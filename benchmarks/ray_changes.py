"""Prints what each change of Ray's processes is worth: a server without it beside one with all of them.

python -m benchmarks.ray_changes --only fork-workers,helpers

Each pair is started in turn, `--rounds` times, over `--models` Python models. Of each start: seconds until it
is ready, processor seconds until then, cores while it is idle, and MiB that its processes have written. A
ratio above 1 is what leaving the change out costs. The rows are those of `app/ray_adapter/local/changes.py`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from app.ray_adapter.local.changes import CHANGES, SWITCH
from benchmarks.footprint import command, measure, write_models
from benchmarks.processes import cpu_seconds, tree
from benchmarks.servers import running

SETTLE_S = 8.0


class Figures(NamedTuple):
    """Figures of one server."""

    ready_s: float
    start_cpu_s: float
    idle_cores: float
    own_mib: float


def started(scratch: Path, left_out: str, seconds: float) -> Figures:
    """Start a server without a change ("": with all), and measure it."""
    made = command(scratch / "models", scratch)
    with running(replace(made, env={**(made.env or {}), SWITCH: left_out}), scratch) as server:
        cpu_s = sum(map(cpu_seconds, tree(server.process)))
        time.sleep(SETTLE_S)
        costs = measure(server.process, seconds).values()
        return Figures(server.ready_s, cpu_s, sum(c.cores for c in costs), sum(c.own for c in costs))


def compare(scratch: Path, name: str, rounds: int, seconds: float) -> None:
    """Print medians without and with a change, and their ratios."""
    pairs = [(started(scratch, name, seconds), started(scratch, "", seconds)) for _ in range(rounds)]
    without, with_it = (
        Figures(*map(statistics.median, zip(*side, strict=True))) for side in zip(*pairs, strict=True)
    )
    cells = [f"{w:8.2f} {o:8.2f} {w / o:5.2f}" for w, o in zip(without, with_it, strict=True)]
    print(f"{name:22} {'  '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="names of changes, separated by commas")
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="to look at the idle server")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else [change.name for change in CHANGES]
    print(f"{'without':22} " + "  ".join(f"{field:>8} {'with':>8} ratio" for field in Figures._fields))
    with tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory:
        write_models(Path(directory, "models"), arguments.models)
        for name in names:
            compare(Path(directory), name, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
