"""Whether the rates that `nereid perf --slo` and `nereid analyze` promise are kept by other loads.

Five models, each behind `nereid dev`: the rate that a command told, and 1.15 times that rate, are asked for
by open loops with seeds that the command had not. The rate is right where at least four of five keep the
objective, and fewer do at 1.15 times the rate. A line has the p99 of each load, and behind it the longest
time in which nothing was answered, in ms; "!" marks those whose generator was late. Beside two busy
processes a command has to say that its figures are doubtful, or tell no rate.

Servers and loads have a real-time priority where that is allowed (not beside the busy processes), so that
other work of the machine does not count; no model computes on more than one processor. An hour and a half for
all; --only, --tools and --busy choose.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.long.server import say
from tests.server import ROOT, EngineServer, Server

_MORE: Final = 1.15
_LEAST_KEPT: Final = 0.8
_FAILED: Final = 0.001
"""The share of requests that may fail under an objective that does not say."""
_TRIES: Final = 2
"""Of a load during which the generator itself was late."""
_LOOPS: Final = 2
_COMMAND, _SERVER = 1, 3
"""Real-time priorities: a generator has one more than its command, and a server must not wait for either."""
_SEARCH_S, _BUSY_SEARCH_S = 300, 60
_AT_MOST_S: Final = 600.0
"""Of a command: its search, and for analyze the comparison before it."""

_SLEEPER: Final = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.base, self.row, self.most = (
            float(parameters[name]["string_value"]) / 1e3 for name in ("base", "row", "most")
        )
        self.random = np.random.default_rng()

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        time.sleep(self.base + self.row * len(tensors) + self.random.uniform(0, self.most))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", tensor)]) for tensor in tensors]
"""
_CONFIG: Final = """
backend: "python"
max_batch_size: %(batch)d
%(batching)s
input { name: "X" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 16 ] }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "base" value { string_value: "%(base)g" } }
parameters { key: "row" value { string_value: "%(row)g" } }
parameters { key: "most" value { string_value: "%(most)g" } }
"""
_ENSEMBLE: Final = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling {
  step {
    model_name: "first" model_version: -1
    input_map { key: "X" value: "X" } output_map { key: "Y" value: "Z" }
  }
  step {
    model_name: "second" model_version: -1
    input_map { key: "X" value: "Z" } output_map { key: "Y" value: "Y" }
  }
}
"""


_ONE_THREAD: Final = """
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


@dataclass(frozen=True)
class Case:
    """A model, the p99 that it has to keep, and what `nereid analyze` searches; nothing for an ensemble."""

    limit_ms: float
    axes: Sequence[str] = ()

    @property
    def slo(self) -> str:
        return f"p99<{self.limit_ms:g}ms"


CASES: Final = {
    "sleeper": Case(60, ("--instances", "1,2")),
    "efficientnet_lite0_onnx": Case(60, ("--batches", "1,8", "--delays", "0,2000", "--instances", "1")),
    "pair": Case(80),
    "random": Case(150, ("--instances", "1,2")),
    "batching": Case(60, ("--batches", "4,8", "--delays", "0,2000", "--instances", "1,2")),
}


def _sleeper(models: Path, name: str, base: float, row: float = 0, most: float = 0, batch: int = 0) -> None:
    """Write a model that sleeps so many ms, so many a request, and up to so many by chance."""
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(_SLEEPER)
    batching = "dynamic_batching {}" if batch else ""
    values = {"batch": batch, "batching": batching, "base": base, "row": row, "most": most}
    (models / name / "config.pbtxt").write_text(_CONFIG % values)


def _write(models: Path) -> None:
    _sleeper(models, "sleeper", 10)
    _sleeper(models, "first", 4)
    _sleeper(models, "second", 8)
    _sleeper(models, "random", 0, most=30)
    _sleeper(models, "batching", 5, row=1, batch=8)
    (models / "pair" / "1").mkdir(parents=True)
    (models / "pair" / "config.pbtxt").write_text(_ENSEMBLE)
    shutil.copytree(ROOT / "model_repository/efficientnet_lite0_onnx", models / "efficientnet_lite0_onnx")
    config = models / "efficientnet_lite0_onnx" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 2", "count: 1") + _ONE_THREAD)


@contextmanager
def served(model: str, busy: bool = False, *more: str) -> Iterator[Server]:
    """A server with one model, or with an ensemble's, with more flags."""
    with tempfile.TemporaryDirectory(prefix="n") as directory:
        models = Path(directory, "models")
        _write(models)
        loaded = ("pair", "first", "second") if model == "pair" else (model,)
        flags = [f"--model-repository={models}", *(f"--load-model={name}" for name in loaded), *more]
        _set_priority(0 if busy else _SERVER)
        server = EngineServer(flags, Path(directory, "log"), mode="explicit").start()
        _set_priority(0 if busy else _COMMAND)
        try:
            yield server
        finally:
            server.stop()


def nereid(*words: str) -> tuple[int, Any]:
    """Run a command that prints JSON; return its exit status and that, None if there is none."""
    told = subprocess.run(
        [sys.executable, "-m", "nereid", *words, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=_AT_MOST_S,
    )
    if told.returncode not in (0, 4):
        say(told.stderr[-2000:])
    return told.returncode, json.loads(told.stdout) if told.stdout.startswith("{") else None


def promised(
    tool: str, model: str, server: Server, output: str, search_s: int = _SEARCH_S
) -> tuple[float, str]:
    """Return the rate that a command promises, 0 for none, and what it says against that."""
    case = CASES[model]
    words = [tool, "-m", model, "-u", server.http_url, "--slo", case.slo, f"--search-time={search_s}"]
    if tool == "analyze":
        words += [*case.axes, "--keep", "--output", f"{output}/{model}"]
    status, document = nereid(*words)
    if document is None:
        raise SystemExit(f"nereid {' '.join(words)}: exit status {status}")
    if tool == "analyze":
        say(f"  analyze: {document['best']}; {' '.join(document['notes'])}")
        return float(document["rate"]), " ".join(document["notes"][2:])
    slo, levels = document["slo"], document["levels"]
    say(f"  perf: {slo['rate']:.4g}/s {slo['why']}; tried {[(each[0], each[1]) for each in slo['tried']]}")
    doubts = [document["busy_machine"], slo["why"], *([] if levels[-1]["stable"] else levels[-1]["reasons"])]
    return float(slo["rate"]), "; ".join(filter(None, [*doubts, levels[-1]["void"]]))


def p99(model: str, server: Server, rate: float, seed: int, seconds: float) -> tuple[float, str]:
    """Return what an open loop measures in ms, infinity if requests fail; and its longest pause."""
    for _ in range(_TRIES):
        words = ("-m", model, "-u", server.http_url, f"--rate={rate:g}", f"--duration={seconds:g}")
        _, document = nereid("perf", *words, f"--random-seed={seed}")
        level = document["levels"][0]
        if not level["void"]:
            break
    failed = level["failed"] > _FAILED * level["requests"]
    pause = f"/{1e3 * level['silence']:.0f}{'!' if level['void'] else ''}"
    return float("inf") if failed else level["latency"]["percentiles"]["p99"], pause


def checked(tool: str, model: str, seeds: int, seconds: float) -> bool:
    """Tell what a command promises of a model, and what other loads show; return whether it is right."""
    begun, limit = time.monotonic(), CASES[model].limit_ms
    with tempfile.TemporaryDirectory() as output, served(model) as server:
        rate, _ = promised(tool, model, server, output)
        took = time.monotonic() - begun
        if not rate:
            say(f"WRONG {tool:7} {model}: no rate was told, in {took:.0f} s")
            return False
        at, above = [], []
        for seed in range(1, seeds + 1):  # in turn, so that the machine's hours are those of both
            at.append(p99(model, server, rate, 100 + seed, seconds))
            above.append(p99(model, server, _MORE * rate, 200 + seed, seconds))
    kept, still = (sum(value < limit for value, _ in each) for each in (at, above))
    right = kept >= _LEAST_KEPT * seeds and still < _LEAST_KEPT * seeds
    first = "" if os.sched_getscheduler(0) == os.SCHED_RR else ", without priority"
    told = f"{tool:7} {model:24} {CASES[model].slo:10} {rate:7.4g}/s in {took:3.0f} s{first}"
    shown = f"kept by {kept} of {seeds} ({_listed(at)} ms)"
    say(f"{_verdict(right)} {told}; {shown}, at {_MORE * rate:.4g}/s by {still} ({_listed(above)} ms)")
    return right


def _set_priority(real_time: int) -> None:
    """Set the priority that servers and commands inherit, 0 for that of ordinary processes."""
    with suppress(PermissionError):
        policy = os.SCHED_RR if real_time else os.SCHED_OTHER
        os.sched_setscheduler(0, policy, os.sched_param(real_time))


def _verdict(right: bool) -> str:
    return "right" if right else "WRONG"


def _listed(values: Sequence[tuple[float, str]]) -> str:
    return " ".join(f"{value:.0f}{mark}" for value, mark in values)


def doubted(tool: str, model: str) -> bool:
    """Tell what a command says beside busy processes; return whether it says that figures are doubtful."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(_LOOPS)]
    try:
        with tempfile.TemporaryDirectory() as output, served(model, busy=True) as server:
            rate, doubts = promised(tool, model, server, output, _BUSY_SEARCH_S)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    right = not rate or bool(doubts)
    told = f"{tool:7} {model:24} beside {_LOOPS} busy loops: {rate:.4g}/s"
    say(f"{_verdict(right)} {told}, {doubts or ('without a doubt' if rate else 'which is none')}")
    return right


def main() -> None:
    """Check all, print a line for each, and fail where a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python -m tests.long.promises")
    parser.add_argument("--only", default=",".join(CASES), metavar="MODEL,MODEL")
    parser.add_argument("--tools", default="perf,analyze", metavar="TOOL,TOOL")
    parser.add_argument("--seeds", type=int, default=5, help="other loads of each rate (5)")
    parser.add_argument("--seconds", type=float, default=30, help="of a load (30)")
    parser.add_argument("--busy", choices=("no", "yes", "only"), default="yes", help="beside busy processes")
    given = parser.parse_args()
    chosen = [
        (tool, model)
        for model in given.only.split(",")
        for tool in given.tools.split(",")
        if tool == "perf" or CASES[model].axes
    ]
    right = True
    if given.busy != "no":
        right &= all([doubted(tool, model) for tool, model in chosen])
    if given.busy != "only":
        right &= all([checked(tool, model, given.seeds, given.seconds) for tool, model in chosen])
    sys.exit(not right)


if __name__ == "__main__":
    main()
