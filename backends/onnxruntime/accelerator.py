"""ONNX models that OpenVINO executes: `cpu_execution_accelerator { name: "openvino" }`.

Triton builds ONNX Runtime with a provider of that name. The usual wheel has none; one that is there is used.
"""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import onnxruntime as ort

from app.core.errors import InferError, unsupported
from app.core.installed.installation import install_command
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.onnxruntime.model_io import OnnxIO
from backends.parameters import positive

if TYPE_CHECKING:
    from openvino import CompiledModel

    from backends.openvino.runs import Runs

logger = logging.getLogger(__name__)

OPENVINO = "openvino"
PROVIDER = "OpenVINOExecutionProvider"


def wants_openvino(instance: Instance) -> bool:
    """Return whether an instance is to be executed by OpenVINO itself.

    Raises:
        InferError: UNSUPPORTED without OpenVINO.
    """
    accelerators = instance.model.config.optimization.execution_accelerators.cpu_execution_accelerator
    wanted = any(accelerator.name == OPENVINO for accelerator in accelerators)
    if instance.kind != "CPU" or not wanted or PROVIDER in ort.get_available_providers():
        return False
    if find_spec("openvino") is None:
        raise unsupported(
            f"model '{instance.model.name}' asks for the execution accelerator '{OPENVINO}', which needs"
            f" OpenVINO, which is not installed; install the extra: {install_command('openvino')}"
        )
    return True


def compile_onnx(model: Model, path: Path, io: OnnxIO) -> "CompiledModel | None":
    """Compile a model for the CPU; None, with a warning, for one that OpenVINO cannot execute.

    ONNX Runtime's provider leaves to ONNX Runtime what OpenVINO cannot execute, too.
    """
    from backends.openvino.model_io import TYPES
    from backends.openvino.network import read_file
    from backends.openvino.properties import cpu_properties
    from backends.openvino.runtime import compile_network

    threads = positive(model, "intra_op_thread_count", threads_per_instance(model.config))
    try:
        kinds = {tensor.config_type for tensor in (*io.inputs.values(), *io.outputs.values())}
        if other := kinds - set(TYPES):
            raise unsupported(f"it has tensors of {', '.join(sorted(other))}")
        if any(tensor.name in io.optional for tensor in model.config.input):
            raise unsupported("it has an input that is an initializer")
        return compile_network(read_file(path), "CPU", cpu_properties(model.config, threads))
    except InferError as error:
        logger.warning("model '%s' is executed without OpenVINO: %s", model.name, error.message)
        return None


def new_runs(model: Model, compiled: "CompiledModel") -> "Runs":
    """Return the executions of one instance, the first of which is over."""
    from backends.openvino.runs import Runs

    runs, largest = Runs(compiled), model.config.max_batch_size
    runs.warm_up({1, largest} if largest else {0})
    return runs
