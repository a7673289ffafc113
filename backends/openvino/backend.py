"""Backend of models that OpenVINO reads: its own format, ONNX, TensorFlow Lite, Paddle and TensorFlow.

OpenVINO releases the GIL while an infer request runs.
"""

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import openvino as ov
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.batch_arrays import Array
from backends.openvino.model_io import complete, read_ports
from backends.openvino.network import fit, read_network
from backends.openvino.properties import compile_properties, target_device
from backends.openvino.runs import Runs
from backends.openvino.runtime import compile_network


class _Compiled(NamedTuple):
    """A compiled model, and the rows that each of its executions must have; 0 for any number."""

    model: ov.CompiledModel
    rows: int


class _Shared:
    """The compiled model that all instances share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.compiled: _Compiled | None = None


class OpenVinoBackend(ArrayBackend):
    """Backend `openvino`: `model.xml` with `model.bin`, or another file by `default_model_filename`.

    All instances share one compiled model, so the weights are in memory once; each has an infer request.
    """

    # Declared dims are compared once, at load, and the number of rows at each execution.
    checks_dims = False

    def model_initialize(self, model: Model) -> None:
        model.state = _Shared()

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> Runs:
        model = instance.model
        if instance.kind != "CPU":
            raise invalid_arg(
                f"unable to load model '{model.name}', Triton OpenVINO backend supports only Kind CPU and"
                " AUTO"
            )
        shared: _Shared = model.state
        with shared.lock:
            if shared.compiled is None:
                shared.compiled = _compile(model)
        compiled, rows = shared.compiled
        pads = model.parameter("ENABLE_BATCH_PADDING").lower() != "no"
        largest = model.config.max_batch_size
        runs = Runs(compiled, rows, pads, batched=largest > 0)
        runs.warm_up({rows} if rows else {1, largest} if largest else {0})
        return runs

    def execute(self, loaded: Runs, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        return loaded.run(inputs, outputs)

    def runs_on_event_loop(self, instance: Instance) -> bool:
        return target_device(instance.model) == "CPU"

    @classmethod
    def inspect(cls, model: Model) -> bool:
        return not model.parameter("CPU_EXTENSION_PATH")

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        return complete(model, read_ports(read_network(model)))


def _compile(model: Model) -> _Compiled:
    network, rows = fit(read_network(model), model)
    return _Compiled(compile_network(network, target_device(model), compile_properties(model)), rows)
