"""Backend of PyTorch models: TorchScript, exported programs, AOTInductor packages.

Eager models (`runtime: "model.py"`) are Python models: see `backends/pytorch/eager/model.py`.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, internal, invalid_arg
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.cuda.device import CudaDevice
from backends.load_locks import loading
from backends.operations import operation_libraries
from backends.parameters import boolean, integer, positive
from backends.pytorch.aoti import Package
from backends.pytorch.archive import AOTI, Content, content_of, model_file
from backends.pytorch.exported import Exported
from backends.pytorch.flat import FlatProgram
from backends.pytorch.tensors import Array, check_types, declared_types, from_torch, to_numpy, to_torch
from backends.pytorch.torchscript import TorchScript

logger = logging.getLogger(__name__)

_ops: Any = torch.ops  # not typed
_CPU: Final = torch.device("cpu")
_HERE: Final = nullcontext()

_REUSED: Final[dict[Content, str]] = {
    "torchscript": "Reusing TorchScript model for instance '%s'",
    "exported": "Reusing exported program for instance '%s'",
    "aoti": 'Reusing Inductor model loader for instance "%s".',
}

# Parameters that set an option of the process, which serves this model only.
_PROCESS_SWITCHES: Final = {
    "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
    "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
    "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
}

# Boolean parameters, and their names in the log.
_SWITCHES: Final = {
    "DISABLE_OPTIMIZED_EXECUTION": "Optimized execution",
    "ENABLE_CACHE_CLEANING": "Cache Cleaning",
    "INFERENCE_MODE": "Inference Mode",
    "DISABLE_CUDNN": "cuDNN",
    "ENABLE_TENSOR_FUSER": "Tensor fuser",
    "ENABLE_WEIGHT_SHARING": "Weight sharing",
    "ENABLE_JIT_PROFILING": "Jit profiling",
    "ENABLE_JIT_EXECUTOR": "Jit executor",
}


class _Shared:
    """What instances on the same device share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_device: dict[str, Any] = {}


class _Loaded:
    """What executes an instance's batches: a program, where it runs, and the declared data types."""

    def __init__(self, program: TorchScript | FlatProgram, model: Model, gpu: CudaDevice | None) -> None:
        self.program = program
        self.gpu = gpu
        self.types = declared_types(model.config)
        # Entered again for each execution, of which an instance has one at a time.
        self.mode: AbstractContextManager[Any] = (
            torch.inference_mode() if boolean(model, "INFERENCE_MODE", True) else torch.no_grad()
        )
        self.cleans_cache = boolean(model, "ENABLE_CACHE_CLEANING")

    def current(self) -> AbstractContextManager[Any]:
        """Return the context in which an execution's calls go to the instance's device."""
        return _HERE if self.gpu is None else self.gpu.current()

    def output(self, name: str, results: Sequence[Any]) -> Any:
        """Return an output in host memory; from a GPU, its data is valid after `wait`.

        Raises:
            InferError: INVALID_ARG for an output that the model does not have, or of another data type.
        """
        index = self.program.outputs[name]
        if index >= len(results):
            raise invalid_arg(
                f"The output {name} in the model configuration refers to an output index which doesn't"
                f" exist. This model has {len(results)} outputs"
            )
        return from_torch(name, results[index], self.types[name], self.gpu)


class TorchBackend(ArrayBackend):
    """Backend `pytorch`. A module has tensors, lists of strings, or one dictionary of tensors as arguments.

    Threads within an operator default to an equal share of the CPUs for each instance.
    """

    # TorchScript declares no shapes, and Triton does not compare those that the model returns.
    checks_dims = False

    def initialize(self, config: Mapping[str, str]) -> None:
        # PyTorch reads some parts of exported programs by Python's pickle, which executes code, unless told
        # otherwise. Triton has no such restriction.
        os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
        os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"

    def model_initialize(self, model: Model) -> None:
        model.state = _Shared()
        _log_switches(model)
        torch.set_num_threads(positive(model, "INTRA_OP_THREAD_COUNT", threads_per_instance(model.config)))
        inter_op = integer(model, "INTER_OP_THREAD_COUNT")
        if inter_op > 0:
            try:
                torch.set_num_interop_threads(inter_op)
            except RuntimeError as error:
                logger.warning("INTER_OP_THREAD_COUNT of model '%s' is not set: %s", model.name, error)
        for key, switch in _PROCESS_SWITCHES.items():
            if model.parameter(key):
                switch(boolean(model, key))
        if boolean(model, "DISABLE_CUDNN"):
            torch.backends.cudnn.enabled = False
        for library in operation_libraries(model, "pytorch"):
            _load_operations(library, model)

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> _Loaded:
        gpu = CudaDevice(instance) if instance.kind == "GPU" else None
        program = self._program(instance, gpu)
        check_types(instance.model.config)
        loaded = _Loaded(program, instance.model, gpu)
        if gpu is not None:
            gpu.synchronize()  # weights were copied on another stream
            instance.merged_inputs = gpu.inputs
        if isinstance(program, FlatProgram):
            _warm_up(loaded, program, instance.model)
        return loaded

    def _program(self, instance: Instance, gpu: CudaDevice | None) -> TorchScript | FlatProgram:
        model = instance.model
        path = model_file(model)
        content = content_of(path, model)
        device: torch.device | None = _CPU if gpu is None else gpu.device
        if instance.kind == "MODEL":
            device = None  # the device that the file names
        # A module of TorchScript may keep state between its executions; the others are functions.
        shares = boolean(model, "ENABLE_WEIGHT_SHARING", content != "torchscript")
        with model.state.lock:
            opened = model.state.by_device.get(str(device)) if shares else None
            if opened is None:
                with loading("torch"):
                    opened = _open(content, path, model, device, shares)
                model.state.by_device[str(device)] = opened
            else:
                logger.info(_REUSED[content], instance.name)
        return TorchScript(opened, instance) if content == "torchscript" else FlatProgram(opened, instance)

    def execute(
        self, loaded: _Loaded, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        gpu, types = loaded.gpu, loaded.types
        with loaded.mode, loaded.current():
            results = loaded.program.run({name: to_torch(name, inputs[name], types, gpu) for name in inputs})
            found = {name: loaded.output(name, results) for name in outputs}
            if gpu is not None:
                gpu.wait()
        if loaded.cleans_cache and gpu is not None:
            torch.cuda.empty_cache()
        return {name: to_numpy(host) for name, host in found.items()}

    @classmethod
    def inspect(cls, model: Model) -> bool:
        path = model_file(model)
        if content_of(path, model) == AOTI:
            Package.inspect(path, model)
            return False
        return not model.config.model_operations.op_library_filename

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        if model.config.platform == "torch_aoti":
            logger.info(
                "Auto-complete configuration is not supported for Inductor models. Skipping auto-complete for"
                ' model "%s".',
                model.name,
            )
        elif not (model.config.input and model.config.output):
            logger.warning(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend",
                model.name,
            )
        return model.config


def _load_operations(library: Path, model: Model) -> None:
    try:
        with loading("torch"):
            _ops.load_library(library)
    except OSError as error:
        reason = error.__cause__ or error  # PyTorch's own text names the file and no reason
        raise internal(f"unable to load a library of operations of model '{model.name}': {reason}") from error
    logger.info("model '%s' has operations of %s", model.name, library)


def _log_switches(model: Model) -> None:
    for key, what in _SWITCHES.items():
        if key in model.config.parameters:
            enabled = boolean(model, key) != key.startswith("DISABLE_")
            state = "enabled" if enabled else "disabled"
            logger.info("%s is %s for model instance '%s'", what, state, model.name)


def _open(content: Content, path: Path, model: Model, device: torch.device | None, shares: bool) -> Any:
    if content == "torchscript":
        return TorchScript.open(path, model, device)
    if content == "exported":
        return Exported.open(path, model, device)
    groups = model.config.instance_group
    return Package.open(path, model, device, sum(group.count for group in groups) or 1 if shares else 1)


def _warm_up(loaded: _Loaded, program: FlatProgram, model: Model) -> None:
    """Run once: the first run takes up to 1000 times longer than others, so it is not left to a client."""
    try:
        with loaded.mode, loaded.current():
            program.warm_up(_CPU if loaded.gpu is None else loaded.gpu.device)
            if loaded.gpu is not None:
                loaded.gpu.wait()
    except InferError as error:  # inputs of zeros, or examples on another device, may not suit the model
        logger.info("model '%s' did not run with its example inputs: %s", model.name, error.message)
