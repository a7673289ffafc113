"""Memory and throughput of four instances in the replica, in a worker process each, and in one process.

python -m benchmarks.instances [--interpreter PATH] [--seconds 4] [--mb 100]

The model, ONNX's MatMul with so many MB of weights, releases the interpreter's lock. All three are loaded,
then execute in turn. Memory is the proportional set size of the processes that execute, for the replica the
growth of this one. CPU time is that of all: on a busy machine Linux may give several processes more of it.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import psutil
from google.protobuf import text_format
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc import model_config_pb2 as mc

from app.core.installation import SERVER_PYTHON
from app.core.tensors import InferRequest, InferResponse, Tensor
from backends import find_backend, hosted_backend
from backends.base import Backend, Instance, Model, Request
from benchmarks.report import table

_COUNT: Final = 4
_ROUNDS: Final = 5
_CONFIG: Final = """
    name: "m" platform: "onnxruntime_onnx" backend: "onnxruntime" max_batch_size: 8
    instance_group {{ count: {count} kind: KIND_CPU }}
    input {{ name: "X" data_type: TYPE_FP32 dims: {width} }}
    output {{ name: "Y" data_type: TYPE_FP32 dims: {width} }}
    parameters {{ key: "INSTANCES_SHARE_PROCESS" value {{ string_value: "{shared}" }} }}
"""


class Side(NamedTuple):
    """A loaded model: its instances, the processes that execute them, and the MB that they take."""

    name: str
    backend: Backend
    instances: Sequence[Instance]
    processes: Sequence[psutil.Process]
    memory: float

    def measure(self, seconds: float, row: Tensor) -> tuple[float, float]:
        """Have every instance execute, one request at a time, from a thread of its own.

        Returns:
            Requests per second, and milliseconds of CPU time for each.
        """
        before = self._cpu_s()
        count = self._execute(seconds, row)
        return count / seconds, (self._cpu_s() - before) / count * 1e3

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in {psutil.Process(), *self.processes}]
        return float(sum(each.user + each.system for each in times))

    def _execute(self, seconds: float, row: Tensor) -> int:
        counts = [0] * len(self.instances)
        end = time.perf_counter() + seconds

        def execute(place: int) -> None:
            responses: list[InferResponse] = []
            while time.perf_counter() < end:
                request = Request(InferRequest("m", "", (row,)), responses.append, lambda: False)
                self.backend.instance_execute(self.instances[place], [request])
                counts[place] += 1
                assert responses.pop().failure is None

        threads = [threading.Thread(target=execute, args=(place,)) for place in range(len(counts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts)


def write(folder: Path, width: int) -> None:
    """Write a model of width * width weights."""
    weights = np.random.default_rng(0).standard_normal((width, width), np.float32)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "XY"]
    node = helper.make_node("MatMul", ["X", "W"], ["Y"])
    initial = [numpy_helper.from_array(weights, "W")]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], initial)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1").mkdir()
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())


def load(name: str, kind: type[Backend], folder: Path, python: Path, width: int) -> Side:
    """Load the model; measure what that takes."""
    text = _CONFIG.format(count=_COUNT, width=width, shared=str(name == "one process").lower())
    model = Model(text_format.Parse(text, mc.ModelConfig()), 1, folder)
    model.interpreter = python
    before, backend = _megabytes([psutil.Process()]), kind()
    backend.initialize({})
    backend.model_initialize(model)
    instances = [Instance(model, f"m_0_{index}", index=index) for index in range(_COUNT)]
    for instance in instances:
        backend.instance_initialize(instance)
    pids = {pid for instance in instances if (pid := getattr(instance.state, "pid", 0))}
    processes = [*map(psutil.Process, pids)]
    memory = _megabytes(processes) if pids else _megabytes([psutil.Process()]) - before
    return Side(name, backend, instances, processes, memory)


def _megabytes(processes: Any) -> float:
    return float(sum(process.memory_full_info().pss for process in processes)) / 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interpreter", type=Path, default=SERVER_PYTHON, help="of the worker processes")
    parser.add_argument("--seconds", type=float, default=4, help="for each side")
    parser.add_argument("--mb", type=int, default=100, help="of weights")
    arguments = parser.parse_args()
    width = int((arguments.mb * 250_000) ** 0.5)
    row = Tensor.from_array("X", np.ones((1, width), np.float32))
    there = hosted_backend("onnxruntime")
    kinds = (
        ("replica", find_backend("onnxruntime")),
        ("a process each", there),
        ("one process", there),
    )
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), width)
        sides = [load(name, kind, Path(folder), arguments.interpreter, width) for name, kind in kinds]
        share = arguments.seconds / _ROUNDS
        for side in sides:
            side.measure(share, row)
        rounds = [[side.measure(share, row) for side in sides] for _ in range(_ROUNDS)]
        lines = []
        for side, measured in zip(sides, zip(*rounds, strict=True), strict=True):
            rates, cpu = ([*column] for column in zip(*measured, strict=True))
            of_each = [rate / other[1][0] for rate, other in zip(rates, rounds, strict=True)]
            figures = (side.memory, median(rates), median(of_each), median(cpu))
            lines.append(
                [side.name, *(f"{figure:.{n}f}" for figure, n in zip(figures, (0, 0, 2, 2), strict=True))]
            )
        for side in sides:
            for instance in side.instances:
                side.backend.instance_finalize(instance)
    print(
        table(
            [
                f"{_COUNT} instances, {arguments.mb} MB",
                "MB",
                "requests/s",
                "of a process each",
                "CPU ms each",
            ],
            lines,
        )
    )


if __name__ == "__main__":
    main()
