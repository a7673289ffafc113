"""A call of a backend beside a call of the bare framework, for each kind of model, in one process and run.

python -m benchmarks.backends [--only pytorch] [--seconds 2]

Both sides have the same model, threads and batch, and run in turn. A call of a backend is what an instance
executes for one request: input bytes to arrays, the framework, outputs to bytes, the response. What a call
takes more than the framework hardly depends on the model: for a backend in a process of its own it is mostly
the way there and back, as a replica's event loop goes it, and only models of milliseconds are within 5%.
"""

from __future__ import annotations

import argparse
import selectors
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, InferResponse, Tensor
from backends.base import Backend, Instance, Model, Request
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace
from benchmarks import results
from benchmarks.report import table
from deployments.environments.prepare import prepare

Call = Callable[[], object]

ROWS: Final = {
    "cuda": "benchmarks.backend_rows.cuda",
    "dali": "benchmarks.backend_rows.dali",
    "fil": "benchmarks.backend_rows.fil",
    "llm": "benchmarks.backend_rows.llm",
    "openvino": "benchmarks.backend_rows.openvino",
    "paddle": "benchmarks.backend_rows.paddle",
    "pytorch": "benchmarks.backend_rows.pytorch",
    "rtsp": "benchmarks.backend_rows.video",
    "tensorflow": "benchmarks.backend_rows.tensorflow",
    "tvm": "benchmarks.backend_rows.tvm",
}
"""Backend: the module whose `rows()` yields its rows."""

_ROUNDS: Final = 7


class Row(NamedTuple):
    """A model on both sides; `make` prepares it in an empty folder and returns both calls: ours, bare."""

    name: str
    make: Callable[[Path], tuple[Call, Call]]


def served(
    config: str,
    folder: Path,
    inputs: Mapping[str, np.ndarray[Any, Any]],
    kind: str = "CPU",
    settings: Mapping[str, str] | None = None,
) -> Call:
    """Load a model of a folder for a CPU or GPU; return a call that executes one request of these inputs."""
    declared = text_format.Parse(config, mc.ModelConfig())
    made = find_backend(BackendPlace(declared.backend, None, declared.runtime))
    model = Model(declared, 1, folder, settings)
    model.common_file = BackendPlace(declared.backend, None, declared.runtime).python_file
    model.interpreter = prepare(model, 0).python
    backend, instance = made(), Instance(model, f"{declared.name}_0_0", kind)
    backend.initialize(model.backend_config)
    backend.model_initialize(model)
    backend.instance_initialize(instance)
    tensors = tuple(Tensor.from_array(name, array) for name, array in inputs.items())
    responses: list[InferResponse] = []
    requests = [Request(InferRequest(declared.name, "", tensors), responses.append, lambda: False)]
    execute = _Executor(backend, instance)

    def call() -> None:
        requests[0].answered = False
        execute(requests)
        response = responses.pop()
        assert response.failure is None, response.failure

    return call


class _Executor:
    """Executes batches of an instance; what another process executes as `RemoteExecutor` does, on a loop."""

    def __init__(self, backend: Backend, instance: Instance) -> None:
        self._backend = backend
        self._instance = instance
        self._selector = selectors.DefaultSelector()
        self._source: object = None

    def __call__(self, requests: Sequence[Request]) -> None:
        begun = self._backend.instance_begin(self._instance, requests)
        if begun is None:
            self._backend.instance_execute(self._instance, requests)
            return
        if self._source is None:
            self._source = begun.source
            self._selector.register(begun.open_source(), selectors.EVENT_READ)
        assert begun.source is self._source, "the process has ended"
        self._selector.select()
        while not begun.has_ended():
            self._selector.select()
        begun.finish()


def seconds_each(call: Call, seconds: float) -> float:
    """Return the seconds of one call, over as many as fit."""
    began, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds:
        call()
        calls += 1
    return elapsed / calls


def compare(row: Row, seconds: float) -> list[str]:
    """Measure both sides in turn; return a line of the table: microseconds, their difference and ratio."""
    with tempfile.TemporaryDirectory() as folder:
        ours, bare = row.make(Path(folder))
        for call in (ours, bare):
            seconds_each(call, seconds / 10)
        share = seconds / _ROUNDS / 2
        pairs = [(seconds_each(ours, share), seconds_each(bare, share)) for _ in range(_ROUNDS)]
    ratio = median(one / other for one, other in pairs)
    more = median(one - other for one, other in pairs)
    times = [f"{median(side) * 1e6:.0f}" for side in zip(*pairs, strict=True)]
    return [row.name, *times, f"{more * 1e6:.1f}", f"{ratio:.3f}"]


def rows(only: str) -> Iterable[Row]:
    """Return the rows with `only` in their name or their backend's."""
    for backend, module in ROWS.items():
        try:
            every = list(import_module(module).rows())  # rows() may say that its framework is missing
        except ImportError as error:
            print(f"{backend}: {error}")
            continue
        yield from (row for row in every if only in f"{backend} {row.name}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows with this in their name or their backend's")
    parser.add_argument("--seconds", type=float, default=4, help="for each row")
    results.add_flag(parser)
    arguments = parser.parse_args()
    with results.recorded("backends", arguments.record):
        lines = [compare(row, arguments.seconds) for row in rows(arguments.only)]
        print(table(["model", "backend us", "bare us", "more us", "ratio"], lines))


if __name__ == "__main__":
    main()
