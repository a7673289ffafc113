"""Answers in time under overload: peak, 3 and 10 times the capacity, by scheduler and kind of client.

    python -m benchmarks.goodput                                    all cells: about 6 minutes
    python -m benchmarks.goodput --against ../other-checkout        beside another tree's server, in turn
    python -m benchmarks.goodput --schedulers direct --clients http --seconds 5 --plot goodput.svg

A model sleeps so that it answers 50 requests a second; its clients wait for a second and leave. Goodput is
what they got in that time. `http` clients say nothing and close their connection, `http timeout` send
Triton's parameter `timeout`, `grpc` a deadline. `peak` is that of 8 clients who send one request after the
other; loads are offered by an open loop (`open_loop.py`), and count from the first request on. With --turns a
sequence keeps its slot while its client sends the next request. The servers run on 127.0.0.1, in turn for
each cell. Memory is what the model's replica (MiB) shares with nobody, before and after the cell.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.open_loop import Outcome, Target, offered, saturated
from benchmarks.processes import tree
from benchmarks.report import table
from benchmarks.servers import Command, clean_environment, free_ports, stop, wait_ready
from benchmarks.tools import ROOT

CAPACITY = 50
PEAK_CLIENTS = 8
LOADS = (3, 10)
CLIENTS = ("http", "http timeout", "grpc")
REST_S = 2.0
"""Between cells, so that no request of one is left in the next."""
CONFIG = """
backend: "identity" max_batch_size: {rows}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
instance_group {{ count: {instances} kind: KIND_CPU }}
{more}
"""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "direct": {"rows": 8, "delay": 20, "instances": 1, "more": ""},
    "direct x2": {"rows": 8, "delay": 40, "instances": 2, "more": ""},
    "dynamic": {"rows": 4, "delay": 80, "instances": 1, "more": "dynamic_batching {}"},
    "sequence": {"rows": 1, "delay": 20, "instances": 1, "more": "sequence_batching { direct {} }"},
    "oldest": {
        "rows": 4,
        "delay": 80,
        "instances": 1,
        "more": "sequence_batching { oldest { max_candidate_sequences: 64 } }",
    },
}


class Side(NamedTuple):
    """A running server of one tree."""

    name: str
    command: Command
    process: psutil.Process

    def replica_mib(self, model: str) -> float:
        """Return the memory of a model's replica that nobody shares with it."""
        for process in tree(self.process):
            if f"ServeReplica:{model}:1" in " ".join(process.cmdline()):
                return float(process.memory_full_info().uss) / (1 << 20)
        return 0.0


class Cell(NamedTuple):
    """The outcome of one load; `load` 0 is the peak."""

    side: str
    scheduler: str
    client: str
    load: int
    outcome: Outcome
    mib: tuple[float, float]

    @property
    def title(self) -> str:
        return f"{self.scheduler}, {self.client}, {f'{self.load}x' if self.load else 'peak'}"


def write_repository(directory: Path, schedulers: Sequence[str]) -> None:
    for name in schedulers:
        model = directory / model_name(name)
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG.format(**SCHEDULERS[name]))


def model_name(scheduler: str) -> str:
    return scheduler.replace(" ", "_")


@contextmanager
def serving(
    name: str, root: Path, repository: Path, scratch: Path, flags: Sequence[str] = ()
) -> Iterator[Side]:
    """Run the server of a tree."""
    http, grpc, metrics = free_ports(3)
    ports = {"http": http, "grpc": grpc, "metrics": metrics}
    arguments = [sys.executable, "-m", "nereid", f"--model-repository={repository}", *flags]
    command = Command(
        name, [*arguments, *(f"--{front}-port={port}" for front, port in ports.items())], http, grpc, False
    )
    environment = {"PYTHONPATH": str(root), "RAY_TMPDIR": str(scratch / name[:1])}
    log = scratch / f"{name}.log"
    with log.open("wb") as output:
        process = psutil.Popen(
            command.arguments,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**clean_environment(), **environment},
            cwd=root,
            start_new_session=True,
        )
    try:
        wait_ready(command, process, log, time.monotonic() + 180)
        yield Side(name, command, process)
    finally:
        stop(process)


def measure(side: Side, scheduler: str, client: str, load: int, options: argparse.Namespace) -> Cell:
    model = model_name(scheduler)
    turns = options.turns if scheduler in ("sequence", "oldest") else 0
    ports = side.command.http_port, side.command.grpc_port
    before = side.replica_mib(model)
    if load:
        target = Target(*ports, model, client, options.wait, turns)
        outcome = asyncio.run(offered(target, load * CAPACITY, options.seconds))
    else:
        target = Target(*ports, model, client, 10 * options.wait, turns)
        outcome = asyncio.run(saturated(target, PEAK_CLIENTS, options.seconds))
    after = side.replica_mib(model)
    time.sleep(REST_S)
    return Cell(side.name, scheduler, client, load, outcome, (before, after))


def rows(cells: Sequence[Cell]) -> list[list[str]]:
    lines = []
    for cell in cells:
        outcome, peak = cell.outcome, peak_of(cell, cells)
        ends = ", ".join(f"{count} {status}" for status, count in sorted(outcome.ends.items()))
        lines.append(
            [
                cell.title,
                cell.side,
                f"{outcome.sent / outcome.seconds:.0f}",
                f"{outcome.goodput:.1f}",
                f"{100 * outcome.goodput / peak:.0f}%" if peak else "",
                f"{outcome.p50_ms():.0f}",
                ends,
                str(outcome.told),
                f"{cell.mib[0]:.0f} {cell.mib[1]:.0f}",
            ]
        )
    return lines


def peak_of(cell: Cell, cells: Sequence[Cell]) -> float:
    """Return the peak of the same tree, scheduler and client."""
    return next((c.outcome.goodput for c in cells if c[:3] == cell[:3] and not c.load), 0.0)


def bars(cells: Sequence[Cell]) -> str:
    """Draw the shares of the peak in text, 50 characters for the whole."""
    lines = []
    for cell in (cell for cell in cells if cell.load):
        share = cell.outcome.goodput / (peak_of(cell, cells) or 1)
        lines.append(f"{cell.title:28} {cell.side:8} {'#' * round(50 * share)} {100 * share:.0f}%")
    return "\n".join(lines)


def plot(cells: Sequence[Cell], path: Path) -> None:
    """Write the shares of the peak as a bar chart; text bars to the same path without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        path = path.with_suffix(".txt")
        path.write_text(bars(cells) + "\n")
        print(f"matplotlib is not installed: wrote {path}")
        return
    loaded = [cell for cell in cells if cell.load]
    figure = Figure(figsize=(9, 1 + 0.3 * len(loaded)), layout="constrained")
    axes = figure.subplots()
    shares = [100 * cell.outcome.goodput / (peak_of(cell, cells) or 1) for cell in loaded]
    axes.barh([f"{cell.title} ({cell.side})" for cell in loaded], shares)
    axes.axvline(90, color="black", linestyle=":")
    axes.set_xlabel("goodput, % of the peak")
    axes.invert_yaxis()
    figure.savefig(path)
    print(f"wrote {path}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", type=Path, help="root of another tree, whose server is measured too")
    parser.add_argument("--seconds", type=float, default=10, help="length of a cell (10)")
    parser.add_argument("--wait", type=float, default=1, help="seconds that clients wait (1)")
    parser.add_argument("--schedulers", default="direct,dynamic,sequence", help=", ".join(SCHEDULERS))
    parser.add_argument("--clients", default="http,grpc", help=", ".join(CLIENTS))
    parser.add_argument("--turns", type=int, default=1, help="requests of each sequence (1)")
    parser.add_argument("--plot", type=Path, help="file for a chart, .svg or .png")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    schedulers, clients = options.schedulers.split(","), options.clients.split(",")
    cells: list[Cell] = []
    with ExitStack() as stack:
        scratch = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="g", ignore_cleanup_errors=True))
        )
        write_repository(scratch / "models", schedulers)
        roots = {"nereid": ROOT, **({"against": options.against.resolve()} if options.against else {})}
        sides = [
            stack.enter_context(serving(name, root, scratch / "models", scratch))
            for name, root in roots.items()
        ]
        for scheduler in schedulers:
            for client in clients:
                for load in (0, *LOADS):
                    cells += [measure(side, scheduler, client, load, options) for side in sides]
                    print(*("  ".join(line) for line in rows(cells)[-len(sides) :]), sep="\n", flush=True)
    header = ["cell", "side", "sent/s", "in time/s", "of peak", "p50 ms", "others", "told", "replica MiB"]
    print("\n" + table(header, rows(cells)) + "\n\n" + bars(cells))
    if options.plot:
        plot(cells, options.plot)


if __name__ == "__main__":
    if not os.environ.get("RAY_USAGE_STATS_ENABLED"):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    main()
