"""Nereid, tritonserver and plain Ray Serve under the same load, interleaved: `make bench`.

python -m benchmarks --quick
python -m benchmarks --sides nereid,triton,mlserver
python -m benchmarks --only 'http identity x' --sides nereid,triton --json results.json --record
python -m benchmarks --only 'differ|beside' --sides nereid,triton-cpp --triton-backends DIR
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benchmarks import neighbours, report, results, servers, tools
from benchmarks.load import Generator
from benchmarks.measure import Cell, Measurement, Plan, check_answers, measure_interleaved
from benchmarks.neighbours import Beside, Neighbour, all_neighbours
from benchmarks.processes import CpuMeter, Usage, total
from benchmarks.repository import (
    bench_repository,
    cpp_backends,
    cpp_repository,
    differing_repository,
    triton_repository,
)
from benchmarks.servers import Command, Server
from benchmarks.tools import ROOT
from benchmarks.traffic import differing_workloads
from benchmarks.workloads import WrongAnswer, all_workloads

IDLE_S = 3.0
QUICK = {"seconds": 2.0, "rounds": 1, "connections": [1, 32]}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_choices(parser)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved measurements of each cell")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--warmup", type=float, default=1.0, help="seconds of load before each measurement")
    parser.add_argument("--quick", action="store_true", help=f"a look, no result: {QUICK}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement")
    parser.add_argument("--repository", type=Path, default=ROOT / "model_repository")
    parser.add_argument("--nereid", type=Path, default=Path(sys.executable).parent / "nereid")
    parser.add_argument(
        "--triton-backends",
        type=Path,
        metavar="DIR",
        help="Triton's C++ backends identity and onnxruntime, or one: tritonserver with them is a side more",
    )
    parser.add_argument("--triton-python", help=f"a Python {tools.TRITON_PYTHON}, which its wheel needs")
    results.add_flag(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    cpp = [servers.TRITON_CPP] if options.triton_backends else []
    options.sides = options.sides or [*servers.NAMES, *cpp]
    if servers.TRITON_CPP in options.sides and not options.triton_backends:
        parser.error(f"{servers.TRITON_CPP} needs --triton-backends")
    return options


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is measured."""
    parser.add_argument(
        "--sides",
        type=commas,
        help=f"of {', '.join((*servers.PEERS, servers.TRITON_CPP))}; the first is compared with the rest",
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="REGEX",
        help="cells whose name matches, as 'grpc simple x8'; without it, those of requests that are alike",
    )
    parser.add_argument("--protocols", type=commas, default=["http", "grpc"])
    parser.add_argument("--connections", type=lambda text: [int(n) for n in commas(text)], default=[1, 8, 32])


def commas(text: str) -> list[str]:
    return [item for item in text.split(",") if item]


def commands(options: argparse.Namespace, bench: Path, scratch: Path) -> list[Command]:
    """Return the commands of the sides, in the order given."""
    makers: Mapping[str, Callable[[], Command]] = {
        **{name: partial(servers.nereid, bench, scratch, options.nereid, name) for name in servers.OURS},
        "triton": lambda: python_triton(options, bench, scratch),
        servers.TRITON_CPP: lambda: cpp_triton(options, bench, scratch),
        "serve": lambda: servers.plain_serve(bench, scratch),
        "mlserver": lambda: servers.mlserver(scratch, tools.install_mlserver()),
    }
    return [makers[side]() for side in options.sides]


def python_triton(options: argparse.Namespace, bench: Path, scratch: Path) -> Command:
    install = tools.install_triton(options.triton_python)
    return servers.triton("triton", triton_repository(bench, scratch / "triton"), install, install.backends)


def cpp_triton(options: argparse.Namespace, bench: Path, scratch: Path) -> Command:
    install, backends = tools.install_triton(options.triton_python), options.triton_backends
    repository = cpp_repository(bench, scratch / servers.TRITON_CPP, backends)
    every = cpp_backends(backends, install.backends, scratch / "backends")
    return servers.triton(servers.TRITON_CPP, repository, install, every)


def choose_cells(options: argparse.Namespace, bench: Path) -> list[Cell]:
    workloads = all_workloads(bench) + (differing_workloads(bench) if options.only else ())
    cells = [
        Cell(workload, protocol, connections)
        for workload in workloads
        for protocol in options.protocols
        for connections in options.connections
    ]
    return [cell for cell in cells if cell.sensible and re.search(options.only, cell.key)]


@contextmanager
def shared(up: list[Server], cells: list[Cell]) -> Iterator[None]:
    """Create the shared memory of the cells that use some; register it at every server that can."""
    with ExitStack() as stack:
        for workload in {cell.workload.name: cell.workload for cell in cells}.values():
            if workload.regions is None:
                continue
            nbytes = sum(array.nbytes for array in workload.inputs.values())
            stack.callback(workload.regions.remove)
            workload.regions.write(workload.inputs, nbytes)
            for server in up:
                if server.command.shared_memory:
                    server.share(workload.regions.inputs, nbytes)
                    server.share(workload.regions.outputs, nbytes)
        yield


def choose_neighbours(options: argparse.Namespace, bench: Path) -> list[Neighbour]:
    found = all_neighbours(bench) if options.only else []
    return [each for each in found if re.search(options.only, each.key)]


def run_neighbours(
    options: argparse.Namespace, up: list[Server], bench: Path, chosen: list[Neighbour], plan: Plan
) -> list[Beside]:
    """Measure small requests beside neighbours; print the table."""
    small = next(each for each in all_workloads(bench) if each.name == "simple")
    measured: list[Beside] = []
    for each in chosen:
        print(f"{time.strftime('%H:%M:%S')} {each.key}", file=sys.stderr)
        measured += neighbours.measure_interleaved(up, each, small, plan, options.rounds)
    rows = [row for each in chosen for row in neighbours.rows([m for m in measured if m.cell == each.key])]
    print(report.table(neighbours.HEADER, rows), "\n")
    return measured


def run_cells(
    options: argparse.Namespace, up: list[Server], cells: list[Cell], plan: Plan
) -> list[Measurement]:
    """Measure the cells; print the tables."""
    measured, rows = [], []
    with shared(up, cells):
        for workload in {cell.workload.name: cell.workload for cell in cells}.values():
            check_answers(up, workload, options.protocols)
        for number, cell in enumerate(cells, 1):
            print(f"{time.strftime('%H:%M:%S')} {number}/{len(cells)} {cell.key}", file=sys.stderr)
            of_cell = measure_interleaved(up, cell, plan, options.rounds)
            measured += of_cell
            rows += report.cell_rows(of_cell)
    print(report.table(report.cells_header(up[0].name), rows), "\n")
    if notes := report.notes(measured):
        print(*notes, sep="\n", end="\n\n")
    print(report.table(report.PROCESS_HEADER, report.process_rows(measured)), "\n")
    return measured


def introduce(up: list[Server]) -> dict[str, dict[str, Usage]]:
    """Print and return the costs of each server while it is idle."""
    print(f"{os.cpu_count()} CPUs, for server and load generator; load average {os.getloadavg()[0]:.1f}")
    # How it was built matters: with profile-guided optimisation bytecode takes two thirds of the time.
    print(f"Python {platform.python_version()} of {sys.base_prefix}, {platform.python_compiler()}")
    meters = {server.name: CpuMeter(server.process) for server in up}
    time.sleep(IDLE_S)
    idle = {name: meter.stop() for name, meter in meters.items()}
    for server in up:
        usage = total(idle[server.name])
        ready = f"{server.name}: ready after {server.ready_s:.1f} s"
        print(f"{ready}; idle it takes {usage.cores:.2f} cores, {usage.peak_mib:,.0f} MiB")
    print()
    return idle


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        stack.enter_context(results.recorded("run", options.record))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nb-", ignore_cleanup_errors=True))
        scratch = Path(folder)
        bench = bench_repository(options.repository, scratch / "models")
        if options.only:
            differing_repository(options.repository, bench)
        cells, chosen = choose_cells(options, bench), choose_neighbours(options, bench)
        if not cells and not chosen:
            sys.exit(f"nothing to measure: no such cell, or {options.repository} is not built (make models)")
        plan = Plan(options.seconds, options.warmup, stack.enter_context(Generator()))
        up = [
            stack.enter_context(servers.running(command, scratch))
            for command in commands(options, bench, scratch)
        ]
        outcome: dict[str, object] = {
            "ready_s": {server.name: server.ready_s for server in up},
            "idle": introduce(up),
            "cells": run_cells(options, up, cells, plan) if cells else [],
            "neighbours": run_neighbours(options, up, bench, chosen, plan) if chosen else [],
        }
        if options.json:
            options.json.write_text(json.dumps(outcome, default=asdict, indent=1))


def start() -> None:
    try:
        main()
    except (tools.MissingTool, servers.ServerFailed, WrongAnswer) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    start()
