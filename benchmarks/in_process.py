"""Calls of a model in this process: `python -m benchmarks.in_process [--calls N]`.

An identity model of 16 numbers, in Python; the rows are called in turn, so that all meet the same load of
the machine.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import numpy as np

import nereid.inprocess as tritonserver
from app.engine.engine import Engine

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


def main() -> None:
    """Print a row for each way to call the model."""
    parser = argparse.ArgumentParser(prog="benchmarks.in_process")
    parser.add_argument("--calls", type=int, default=3000, help="calls of each row")
    calls = parser.parse_args().calls
    with TemporaryDirectory() as repository:
        folder = Path(repository, "identity", "1")
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(_MODEL)
        (folder.parent / "config.pbtxt").write_text(_CONFIG)
        with Engine.open(model_repository=[repository]) as engine:
            for name, taken in measured(rows(engine), calls).items():
                cuts = quantiles(taken, n=100)
                print(f"{name:<24} p50 {cuts[49] * 1e6:6.0f} us   p99 {cuts[98] * 1e6:6.0f} us")


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
