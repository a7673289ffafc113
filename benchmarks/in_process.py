"""Calls of a model in this process: `python -m benchmarks.in_process [--calls N | --threads N]`.

An identity model of 16 numbers, in Python; the rows are called in turn, so that all meet the same load of
the machine. With `--threads` so many threads call it, and the row that is compared is an engine that does not
lend its loop.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

import nereid.inprocess as tritonserver
from app.settings.load import from_args
from benchmarks import results
from nereid.engine.engine import Engine

_CONFIG = """backend: "python"
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
_MODEL = """import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]) for array in inputs]
"""
_WINDOW_S: Final = 0.03
_WINDOWS: Final = 40
"""Of each row, in turn with those of the other one."""


def main() -> None:
    """Print a row for each way to call the model."""
    parser = argparse.ArgumentParser(prog="benchmarks.in_process")
    parser.add_argument("--calls", type=int, default=3000, help="calls of each row")
    parser.add_argument("--threads", type=int, default=0, help="threads that call at the same time")
    results.add_flag(parser)
    arguments = parser.parse_args()
    with TemporaryDirectory() as repository, results.recorded("in_process", arguments.record):
        folder = Path(repository, "identity", "1")
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_MODEL)
        (folder.parent / "config.pbtxt").write_text(_CONFIG)
        if arguments.threads:
            print_rates(repository, arguments.threads)
        else:
            print_times(repository, arguments.calls)


def print_times(repository: str, calls: int) -> None:
    """Print what a call takes, by each way."""
    with Engine.open(model_repository=[repository]) as engine:
        for name, taken in measured(rows(engine), calls).items():
            cuts = quantiles(taken, n=100)
            print(f"{name:<24} p50 {cuts[49] * 1e6:6.0f} us   p99 {cuts[98] * 1e6:6.0f} us")


def print_rates(repository: str, threads: int) -> None:
    """Print the calls a second of threads together, where the engine lends its loop and where it does not."""
    settings = from_args({"model_repository": [repository]})
    with Engine(settings, lends_loop=False) as own, Engine(settings) as lent:
        own.start()
        lent.start()
        ways = zip(rows(own).items(), rows(lent).values(), strict=True)
        for (name, call), lent_call in ways:
            before, now = rates((call, lent_call), threads)
            ratio = median([after / max(first, 1) for first, after in zip(before, now, strict=True)])
            print(f"{name:<24} {median(before):7.0f}/s   loop lent {median(now):7.0f}/s   ratio {ratio:.2f}")


def rates(ways: Sequence[Callable[[], object]], threads: int) -> list[list[float]]:
    """Return the calls a second of threads together, of each way in turn."""
    counts = [[0] * threads for _ in range(_WINDOWS * len(ways))]
    window, ended = -1, False

    def work(thread: int) -> None:
        while not ended:
            turn = window
            ways[turn % len(ways)]()
            counts[turn][thread] += turn >= 0

    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work, thread) for thread in range(threads)]
        time.sleep(_WINDOW_S)
        for window in range(len(counts)):  # noqa: B007  (the threads read it)
            time.sleep(_WINDOW_S)
        ended = True
        for each in working:
            each.result()
    return [[sum(each) / _WINDOW_S for each in counts[way :: len(ways)]] for way in range(len(ways))]


def rows(engine: Engine) -> dict[str, Callable[[], object]]:
    """Return the ways to call the model, by name."""
    given = {"IN": np.ones(16, np.float32)}
    model = tritonserver.Model(engine, "identity")
    return {
        "Engine.infer": lambda: engine.infer("identity", given),
        "Engine.submit, result": lambda: engine.submit("identity", given).result(),
        "Model.infer": lambda: next(model.infer(inputs=given)),
    }


def measured(ways: dict[str, Callable[[], object]], calls: int) -> dict[str, list[float]]:
    """Return the seconds of each call, in turn, without the first calls of each way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-200, calls):
        for name, call in ways.items():
            started = time.perf_counter()
            call()
            if number >= 0:
                taken[name].append(time.perf_counter() - started)
    return taken


if __name__ == "__main__":
    main()
