"""Measures Python models on the event loop of their replica against the same on their instance's thread.

python -m benchmarks.event_loop --rounds 10 --only 'simple x8|bls x1'

Both servers are up at once, the second with `--backend-config=python,event-loop=false`; see
docs/develop/event_loop.md. Needs wrk and h2load.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from benchmarks import composition, report, servers
from benchmarks.measure import Cell, Plan, check_answers, light_generator, measure_interleaved
from benchmarks.repository import PEER_MODELS
from benchmarks.servers import Command
from benchmarks.tools import ROOT
from benchmarks.workloads import IDENTITY, Workload, read_config

HEADER = ("cell", "side", "infer/s", "p50 ms", "p99 ms", "batch", "cores", "CPU us", "MiB", "loop / thread")
STEPS = tuple(f"step{i}" for i in range(composition.BLS_STEPS))


def repository(target: Path) -> Path:
    """Write the models: two that compute, three that call others, and those that are called."""
    examples = ROOT / "model_repository"
    sources = {"simple": PEER_MODELS / "simple.py", IDENTITY: examples / IDENTITY / "1" / "model.py"}
    for name, source in sources.items():
        config = read_config(examples, name)
        config.platform, config.default_model_filename, config.backend = "", "", "python"
        config.dynamic_batching.SetInParent()
        write_model(target / name, text_format.MessageToString(config), source.read_text())
    for name in (*STEPS, *composition.SOURCES):
        config = composition.config(name)
        write_model(target / name, text_format.MessageToString(config), composition.SOURCES.get(name, ""))
    return target


def write_model(directory: Path, config: str, source: str) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(config)
    if source:
        (directory / "1" / "model.py").write_text(source)


def cells() -> Iterator[Cell]:
    integers = np.arange(16, dtype=np.int32).reshape(1, 16)
    small = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 16)
    large = np.linspace(0, 1, 150_000, dtype=np.float32).reshape(1, 150_000)
    operands = {"INPUT0": integers, "INPUT1": np.ones_like(integers)}
    workloads: list[tuple[Workload, tuple[int, ...]]] = [
        (Workload("simple", "simple", operands, ("OUTPUT0", "OUTPUT1")), (1, 8, 32)),
        (Workload("identity", IDENTITY, {"INPUT0": small}, ("OUTPUT0",)), (1, 8, 32)),
    ]
    for model in composition.SOURCES:
        outputs = tuple(output.name for output in composition.config(model).output)
        for name, array in ((model, small), (f"{model}_600KB", large)):
            workloads.append((Workload(name, model, {"INPUT0": array}, outputs), (1,)))
    for workload, counts in workloads:
        for connections in counts:
            yield from (Cell(workload, protocol, connections) for protocol in ("http", "grpc"))


def commands(models: Path, scratch: Path) -> list[Command]:
    """Return the commands of both sides, the one on the loop first."""
    sides = []
    for side, settings in (("loop", ()), ("thread", ("--backend-config=python,event-loop=false",))):
        folder = scratch / side
        folder.mkdir()
        command = servers.nereid(models, folder, Path(sys.executable).parent / "nereid")
        sides.append(replace(command, name=side, arguments=[*command.arguments, *settings]))
    return sides


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--only", default="", metavar="REGEX", help="cells whose name matches")
    options = parser.parse_args(arguments)
    chosen = [cell for cell in cells() if re.search(options.only, cell.key)]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loop-")))
        models = repository(scratch / "models")
        up = [stack.enter_context(servers.running(each, scratch)) for each in commands(models, scratch)]
        for workload in {cell.workload.name: cell.workload for cell in chosen}.values():
            check_answers(up, workload, ("http", "grpc"))
        plan = Plan(options.seconds, options.seconds, light_generator(scratch))
        rows = []
        for cell in chosen:
            rows += report.cell_rows(measure_interleaved(up, cell, plan, options.rounds))
        print(report.table(HEADER, rows))


if __name__ == "__main__":
    main()
