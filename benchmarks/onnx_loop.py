"""The ceiling of a CNN server: the model in a bare ONNX Runtime loop, at the server's batch size and threads.

python -m benchmarks.onnx_loop --model model.onnx --batch 8 --threads 0 --seconds 4
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cell, Plan, measure
from benchmarks.servers import Server, frozen
from benchmarks.tools import ROOT
from benchmarks.workloads import read_config

WARMUP_S = 0.5


@dataclass(frozen=True)
class LoopRatio:
    server: str
    round: int
    batch: int
    server_per_s: float
    loop_per_s: float


def run_loop(model: str, batch: int, threads: int, seconds: float) -> float:
    """Return inferences a second, an image of the batch counting as one."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    first = session.get_inputs()[0]
    shape = (batch, *first.shape[1:])
    feed = {first.name: np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}
    repeat(lambda: session.run(None, feed), WARMUP_S)
    return batch * repeat(lambda: session.run(None, feed), seconds)


def repeat(step, seconds: float) -> float:  # type: ignore[no-untyped-def]
    """Return calls a second."""
    began, calls = time.monotonic(), 0
    while (elapsed := time.monotonic() - began) < seconds:
        step()
        calls += 1
    return calls / elapsed


def pair_with_loop(
    server: Server, others: Sequence[Server], cell: Cell, plan: Plan, rounds: int, repository: Path
) -> list[LoopRatio]:
    """Measure server and loop in turn; the loop runs while every server is frozen."""
    model = repository / cell.workload.model / "1" / "model.onnx"
    config = read_config(repository, cell.workload.model)
    threads = config.parameters["intra_op_thread_count"].string_value or "0"
    ratios = []
    for round_ in range(rounds):
        served = measure(server, others, cell, plan, round_)
        batch = max(1, round(served.mean_batch))
        with frozen([server, *others]):
            loop = loop_in_process(model, batch, threads, plan.seconds)
        ratios.append(LoopRatio(server.name, round_, batch, served.load.infer_per_s, loop))
    return ratios


def loop_in_process(model: Path, batch: int, threads: str, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.onnx_loop", f"--model={model}", f"--batch={batch}"]
    command += [f"--threads={threads}", f"--seconds={seconds}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["infer_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=4)
    arguments = parser.parse_args()
    rate = run_loop(arguments.model, arguments.batch, arguments.threads, arguments.seconds)
    print(json.dumps({"infer_per_s": rate}))


if __name__ == "__main__":
    main()
