"""`nereid analyze` beside a full grid: every configuration measured on a real server, then the search.

    python -m benchmarks.grid                          about eight minutes of a quiet machine
    python -m benchmarks.grid --seconds 200            stops after so long; the next call goes on, by --state

The model is two layers of 2048 by 2048 in ONNX Runtime, 32 MB of weights: a batch costs little more than a
row until its arithmetic does. A cell's figure is what the search is for, and found as the search finds it:
the highest rate of an open loop that keeps the objective. The cell that is best so and the choice of the
search are measured again in the end, in turn, by that same figure: the best of many short measurements is
one that had luck.

The time of the search is given as a share of the measured grid's, and of what model_analyzer needs at least
for the same configurations: by default it measures each with 1, 2, 4 to 1024 requests in flight, and
perf_analyzer takes three windows of five seconds for each of these.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from app.tools.analyze import command
from app.tools.analyze.space import Axes, Candidate
from app.tools.analyze.trials import Trials
from app.tools.perf import slo
from app.tools.perf.bench import Bench
from app.tools.perf.command.flags import read_options
from benchmarks.closed_loop import Silent
from benchmarks.goodput import serving
from benchmarks.tools import ROOT
from nereid_client import Server

MODEL = "layers"
WIDTH = 2048
AXES = Axes((2, 4, 8, 16), (0, 1000, 4000), (1, 2))
FLAGS = ("batches", "delays", "instances")
OBJECTIVE = "p90<150ms"
IN_FLIGHT = 64
WARMUP_S = 0.3
MODEL_ANALYZER_S = 11 * 3 * 5.0
"""For a configuration: 11 loads, each of three windows of five seconds."""
CELL_S, SEARCH_S, ROUND_S = 70.0, 60.0, 140.0
"""No cell, search or round of the comparison is begun with less time left."""
CONFIG = f"""
backend: "onnxruntime"
max_batch_size: 4
input {{ name: "X" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}
output {{ name: "Y" data_type: TYPE_FP32 dims: [ {WIDTH} ] }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""


def write_model(folder: Path) -> None:
    random = np.random.default_rng(0)
    weights = [random.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5 for _ in range(2)]
    nodes = [
        helper.make_node("MatMul", ["X", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["positive"]),
        helper.make_node("MatMul", ["positive", "second"], ["Y"]),
    ]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH]) for name in ("X", "Y")]
    initial = [numpy_helper.from_array(w, name) for w, name in zip(weights, ("first", "second"), strict=True)]
    graph = helper.make_graph(nodes, MODEL, tensors[:1], tensors[1:], initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / MODEL / "1").mkdir(parents=True)
    (folder / MODEL / "config.pbtxt").write_text(CONFIG)
    onnx.save(made, str(folder / MODEL / "1" / "model.onnx"))


class State:
    """What is known, kept in a file.

    `cells` has the fields of each candidate, its rate and the seconds that took, `found` the fields, rate and
    seconds of the search, `rounds` the rates of its choice and of the best cell.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._end = path, time.monotonic() + seconds
        known = json.loads(path.read_text()) if path.exists() else {}
        self.cells: list[list[Any]] = known.get("cells", [])
        self.found: list[Any] = known.get("found", [])
        self.rounds: list[list[float]] = known.get("rounds", [])

    def save(self) -> None:
        content = {"cells": self.cells, "found": self.found, "rounds": self.rounds}
        self._path.write_text(json.dumps(content, indent=1) + "\n")

    def has(self, seconds: float) -> bool:
        """Return whether there is so much time left."""
        return time.monotonic() + seconds < self._end

    def left(self) -> list[Candidate]:
        """Return the cells that are not measured yet, large batches first."""
        known = {Candidate(*fields) for fields, _, _ in self.cells}
        return [candidate for candidate in AXES.candidates()[::-1] if candidate not in known]

    def best(self) -> tuple[Candidate, float]:
        """Return the best cell and its rate."""
        fields, rate, _ = max(self.cells, key=lambda cell: cell[1])
        return Candidate(*fields), rate


class Measuring:
    """Configurations of the model of a server, one loaded and measured after the other."""

    def __init__(self, url: str) -> None:
        options, _ = read_options(["-m", MODEL, "-u", url, "--warmup", str(WARMUP_S)])
        self._server = Server(options.address.url, retry=False)
        self._trials = Trials(self._server, options, slo.read_rules(OBJECTIVE), Silent())
        self._bench = Bench(options, Silent())

    def __enter__(self) -> Measuring:
        self._server.__enter__()
        self._bench.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._trials.restore()
        self._bench.__exit__(*exc)
        self._server.close()

    def cell(self, candidate: Candidate) -> tuple[float, float]:
        """Return the highest rate of a configuration that keeps the objective, and the seconds that took."""
        began = time.monotonic()
        closed = self._trials.turn(self._bench, candidate, IN_FLIGHT)
        rate = self._trials.rate(
            self._bench, candidate, closed.rate, lambda: began + SEARCH_S - time.monotonic()
        )
        return rate.rate, time.monotonic() - began


def grid(url: str, state: State) -> None:
    """Measure the cells that are left."""
    with Measuring(url) as measuring:
        for candidate in state.left():
            if not state.has(CELL_S):
                return
            rate, took = measuring.cell(candidate)
            state.cells.append([list(candidate), rate, took])
            state.save()
            print(f"{candidate}: {rate:.0f}/s, {took:.1f} s", flush=True)


def analyze(url: str, state: State) -> None:
    """Search, and note what was found and the time."""
    with tempfile.TemporaryDirectory() as output:
        words = ["-m", MODEL, "-u", url, "--slo", OBJECTIVE, "--output", output, "--warmup", str(WARMUP_S)]
        axes = [f"--{name}={','.join(map(str, values))}" for name, values in zip(FLAGS, AXES, strict=False)]
        began, printed = time.monotonic(), StringIO()
        with redirect_stdout(printed):
            status = command.main([*words, *axes, "--json"])
        took = time.monotonic() - began
    if status:
        raise SystemExit(f"nereid analyze ended with {status}")
    found = json.loads(printed.getvalue())
    state.found = [list(Candidate(**found["best"])), found["rate"], took]
    state.save()
    print(f"analyze: {Candidate(**found['best'])}: {found['rate']:.0f}/s, {took:.1f} s", flush=True)


def compare(url: str, state: State, rounds: int) -> None:
    """Measure the choice of the search and the best cell again, in turn."""
    chosen, (best, _) = Candidate(*state.found[0]), state.best()
    with Measuring(url) as measuring:
        while len(state.rounds) < rounds and chosen != best and state.has(ROUND_S):
            pair = (chosen, best) if len(state.rounds) % 2 else (best, chosen)
            rates = {each: measuring.cell(each)[0] for each in pair}
            state.rounds.append([rates[chosen], rates[best]])
            state.save()
            print(f"{rates[chosen]:.0f}/s and {rates[best]:.0f}/s", flush=True)


def report(state: State) -> None:
    """Print both choices and their times."""
    best, rate = state.best()
    fields, found, seconds = state.found
    took = sum(cell[2] for cell in state.cells)
    peer = MODEL_ANALYZER_S * len(state.cells)
    ratios = [own / other for own, other in state.rounds if other]
    print(f"grid: {len(state.cells)} cells, best {best}: {rate:.0f}/s")
    own = next(cell[1] for cell in state.cells if cell[0] == fields)
    print(f"analyze: {Candidate(*fields)}: {found:.0f}/s")
    print(f"the choice in the grid: {own:.0f}/s, {own / rate:.1%} of the best cell")
    spread = f"{median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})" if ratios else "not measured"
    same = Candidate(*fields) == best
    print(f"the choice beside the best cell, in turn: {'it is the same' if same else spread}")
    print(f"time: analyze {seconds:.0f} s; grid {took:.0f} s, {seconds / took:.0%} of it;")
    print(f"      model_analyzer's for the same cells at least {peer:.0f} s, {seconds / peer:.1%} of it")


def run(url: str, state: State, rounds: int) -> None:
    """Do what is left, as far as there is time."""
    if not state.found and state.has(SEARCH_S):
        analyze(url, state)
    if state.left():
        grid(url, state)
    if not state.left() and state.found:
        compare(url, state, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--state", type=Path, default=Path("build/grid.json"))
    parser.add_argument("--seconds", type=float, default=3600, help="of this call")
    parser.add_argument("--rounds", type=int, default=3, help="of the comparison (3)")
    given = parser.parse_args()
    given.state.parent.mkdir(exist_ok=True)
    state = State(given.state, given.seconds)
    with tempfile.TemporaryDirectory(prefix="g", ignore_cleanup_errors=True) as scratch:
        models = Path(scratch) / "models"
        write_model(models)
        flags = ["--model-control-mode=explicit", f"--load-model={MODEL}"]
        with serving("nereid", ROOT, models, Path(scratch), flags) as side:
            run(f"127.0.0.1:{side.command.http_port}", state, given.rounds)
    if not state.left() and state.found:
        report(state)


if __name__ == "__main__":
    main()
