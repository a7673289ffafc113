"""Prints what a tape costs: the same server without one and with one, in turn, under the same loads.

    python -m benchmarks.tape                       two servers on Ray: about 6 minutes
    python -m benchmarks.tape --dev --rate 0.1      two processes of `nereid dev`

Each cell is measured `--rounds` times on either side, one after the other (A B, B A, ...), while the other
server is stopped. Rate, p99 and processor time of the server for a request are given as ratios of the two
measurements of a round, their median and range: at a rate of 0.1 the first are to be at least 0.97 and at
most 1.05. `noise` is the range of the same ratios of the server without a tape and itself, a round later.
Rows and drops are those of the whole run; large requests beyond `--tape-rate-limit` are dropped.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks import results
from benchmarks.load import Generator
from benchmarks.measure import Cell, Measurement, Plan, check_answers, measure_interleaved
from benchmarks.processes import total
from benchmarks.report import table
from benchmarks.repository import bench_repository
from benchmarks.servers import Command, Server, nereid, running, url
from benchmarks.tools import ROOT
from benchmarks.workloads import all_workloads

CELLS: Final = (("simple", 32), ("identity_600KB", 8))
HEADER: Final = (
    "cell",
    *(
        f"{kind} {what}"
        for what in ("1/s", "p99 ms", "us")
        for kind in ("off", "on", "ratio", "range", "noise")
    ),
)
READ: Final[tuple[Callable[[Measurement], float], ...]] = (
    lambda each: each.load.infer_per_s,
    lambda each: each.load.p99_ms,
    lambda each: 1e6 * total(each.usage).cores / each.load.infer_per_s if each.load.infer_per_s else 0.0,
)


def commands(bench: Path, scratch: Path, options: argparse.Namespace) -> list[Command]:
    """Return the commands of the two sides: off, on."""
    made = [nereid(bench, scratch, options.nereid, "nereid-dev" if options.dev else "nereid") for _ in "ab"]
    flags = (f"--tape={scratch / 'tape'}", f"--tape-rate={options.rate}", *options.flag)
    sides = (("off", ()), ("on", flags))
    return [
        replace(
            command,
            name=name,
            arguments=(*command.arguments, *more),
            env={**command.env, "RAY_TMPDIR": str(scratch / name)},
        )
        for command, (name, more) in zip(made, sides, strict=True)
    ]


def cells(bench: Path, options: argparse.Namespace) -> Iterator[Cell]:
    """Yield what is measured."""
    known, protocols = {workload.name: workload for workload in all_workloads(bench)}, options.protocols
    for name, connections in CELLS:
        if options.only in (None, name):
            yield from (Cell(known[name], protocol, connections) for protocol in protocols)


def row(measured: Sequence[Measurement]) -> list[str]:
    """Return the line of a cell."""
    by_side = {name: [each for each in measured if each.server == name] for name in ("off", "on")}
    pairs = list(zip(by_side["off"], by_side["on"], strict=True))
    figures: list[str] = []
    for read, digits in zip(READ, (0, 2, 1), strict=True):
        values = [(read(off), read(on)) for off, on in pairs]
        ratios = [on / off if off else 0.0 for off, on in values]
        medians = [statistics.median(side) for side in zip(*values, strict=True)]
        figures += [f"{value:,.{digits}f}" for value in medians]
        figures += [f"{statistics.median(ratios):.3f}", _range(ratios)]
        figures.append(_range([after / before for (before, _), (after, _) in pairwise(values) if before]))
    return [measured[0].cell, *figures]


def _range(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "-"


def recorded(server: Server) -> list[str]:
    """Return what the server's metrics say of its tape."""
    port = next(part for part in server.command.arguments if part.startswith("--metrics-port=")).split("=")[1]
    with urllib.request.urlopen(url(int(port), "/metrics"), timeout=20) as reply:
        lines = reply.read().decode().splitlines()
    return [line for line in lines if line.startswith("nereid_tape") and not line.endswith(" 0")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rate", type=float, default=0.1, help="share of the requests that is recorded")
    parser.add_argument("--flag", action="append", default=[], help="a further flag of the recording side")
    parser.add_argument("--dev", action="store_true", help="one process on each side, without Ray")
    parser.add_argument("--protocols", type=lambda text: text.split(","), default=["http", "grpc"])
    parser.add_argument("--only", choices=[name for name, _ in CELLS], help="one of the workloads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--nereid", type=Path, default=Path(sys.executable).parent / "nereid")
    results.add_flag(parser)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="b", ignore_cleanup_errors=True) as directory,
        ExitStack() as stack,
    ):
        scratch = Path(directory)
        bench = bench_repository(options.repository, scratch / "models")
        up = [stack.enter_context(running(each, scratch)) for each in commands(bench, scratch, options)]
        plan = Plan(options.seconds, options.warmup, stack.enter_context(Generator()))
        rows = []
        for cell in cells(bench, options):
            check_answers(up, cell.workload, [cell.protocol])
            measured = measure_interleaved(up, cell, plan, options.rounds)
            rows.append(row(measured))
            print(*rows[-1], *{each.complaint for each in measured if each.complaint}, file=sys.stderr)
        with results.recorded("tape", options.record):
            print(table(HEADER, rows), *recorded(up[1]), sep="\n")


if __name__ == "__main__":
    main()
