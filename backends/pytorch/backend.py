"""Backend of TorchScript models (`model.pt`), executed by PyTorch."""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name
from app.core.errors import InferError, internal, invalid_arg, unavailable
from backends.array_backend import ArrayBackend
from backends.base import Instance, Model
from backends.cpus import threads_per_instance
from backends.cuda.device import CudaDevice
from backends.declared import controls
from backends.parameters import boolean, integer, positive
from backends.pytorch.naming import input_arguments, output_indices

logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]

# These parts of torch have no types.
_jit: Any = torch.jit

_TYPES: Final = {
    torch.bool: "TYPE_BOOL",
    torch.uint8: "TYPE_UINT8",
    torch.int8: "TYPE_INT8",
    torch.int16: "TYPE_INT16",
    torch.int32: "TYPE_INT32",
    torch.int64: "TYPE_INT64",
    torch.float16: "TYPE_FP16",
    torch.bfloat16: "TYPE_BF16",
    torch.float32: "TYPE_FP32",
    torch.float64: "TYPE_FP64",
}
_BY_NUMPY: Final = {str(kind).removeprefix("torch."): kind for kind in _TYPES}
_CPU: Final = torch.device("cpu")
_TENSORS: Final = frozenset(_TYPES.values())
_SUPPORTED: Final = _TENSORS | {"TYPE_STRING"}

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
    """Modules shared by instances on the same device, if the configuration enables it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_device: dict[str, Any] = {}


class _Loaded:
    """A module, and the mapping of the configuration's names to its `forward`."""

    def __init__(self, module: Any, instance: Instance, gpu: CudaDevice | None) -> None:
        model = instance.model
        config = model.config
        self.module = module
        self.gpu = gpu
        arguments, self.takes_dict = _forward_arguments(module)
        names = [tensor.name for tensor in config.input]
        self.arguments = {n: n for n in names} if self.takes_dict else input_arguments(config, arguments)
        self.outputs = output_indices(config)
        self.types = {
            tensor.name: datatype_name(tensor.data_type) for tensor in (*config.input, *config.output)
        }
        for state in config.sequence_batching.state:
            self.types[state.input_name] = self.types[state.output_name] = datatype_name(state.data_type)
        self.inference_mode = boolean(model, "INFERENCE_MODE", True)
        self.optimized = not boolean(model, "DISABLE_OPTIMIZED_EXECUTION")
        self.cleans_cache = boolean(model, "ENABLE_CACHE_CLEANING")

    def contexts(self) -> list[AbstractContextManager[Any]]:
        """Return the contexts that an execution runs in."""
        contexts: list[AbstractContextManager[Any]] = [
            torch.inference_mode() if self.inference_mode else torch.no_grad()
        ]
        if not self.optimized:
            contexts.append(_jit.optimized_execution(False))
        if self.gpu is not None:
            contexts.append(self.gpu.current())
        return contexts


class TorchBackend(ArrayBackend):
    """Backend `pytorch`. A module has tensors, lists of strings, or one dictionary of tensors as arguments.

    Threads within an operator default to an equal share of the CPUs for each instance.
    """

    # TorchScript declares no shapes, and Triton does not compare those that the model returns.
    checks_dims = False

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

    def model_finalize(self, model: Model) -> None:
        model.state = None

    def load(self, instance: Instance) -> _Loaded:
        gpu = CudaDevice(instance) if instance.kind == "GPU" else None
        loaded = _Loaded(self._module(instance, gpu), instance, gpu)
        _check_types(instance.model.config)
        if gpu is not None:
            gpu.synchronize()  # weights were copied on another stream
            instance.merged_inputs = gpu.inputs
        return loaded

    def _module(self, instance: Instance, gpu: CudaDevice | None) -> Any:
        model = instance.model
        device: torch.device | None = _CPU if gpu is None else gpu.device
        if instance.kind == "MODEL":
            device = None  # the device that the file names
        if not boolean(model, "ENABLE_WEIGHT_SHARING"):
            return _open(model, device)
        shared: _Shared = model.state
        with shared.lock:
            if str(device) in shared.by_device:
                logger.info("Reusing TorchScript model for instance '%s'", instance.name)
            else:
                shared.by_device[str(device)] = _open(model, device)
            return shared.by_device[str(device)]

    def execute(
        self, loaded: _Loaded, inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, Array]:
        with ExitStack() as stack:
            for context in loaded.contexts():
                stack.enter_context(context)
            tensors = {
                loaded.arguments[name]: _to_torch(loaded, name, array) for name, array in inputs.items()
            }
            try:
                result = loaded.module(tensors) if loaded.takes_dict else loaded.module(**tensors)
            except Exception as error:
                raise _explained(error) from error
            results = _results(result)
            found = {name: _from_torch(loaded, name, results) for name in outputs}
            if loaded.gpu is not None:
                loaded.gpu.wait()
        if loaded.cleans_cache and loaded.gpu is not None:
            torch.cuda.empty_cache()
        return {name: _to_numpy(host) for name, host in found.items()}

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        if not (model.config.input and model.config.output):
            logger.warning(
                "skipping model configuration auto-complete for '%s': not supported for pytorch backend",
                model.name,
            )
        return model.config


def _log_switches(model: Model) -> None:
    for key, what in _SWITCHES.items():
        if key in model.config.parameters:
            enabled = boolean(model, key) != key.startswith("DISABLE_")
            state = "enabled" if enabled else "disabled"
            logger.info("%s is %s for model instance '%s'", what, state, model.name)


def _open(model: Model, device: torch.device | None) -> Any:
    path: Path = model.artifact("model.pt")
    if not (path.is_file() or model.config.default_model_filename):
        second = model.artifact("model.pt2")
        path = second if second.is_file() else path
    if not path.is_file():
        raise unavailable(f"unable to find '{path}' for model instance '{model.name}'")
    try:
        return _jit.load(str(path), map_location=device).eval()
    except Exception as error:
        raise internal(f"failed to load model '{model.name}': {_last_line(error)}") from error


def _forward_arguments(module: Any) -> tuple[list[str], bool]:
    """Return the names of the arguments of `forward`, and whether the only one is a dictionary.

    Raises:
        InferError: INTERNAL for arguments of other types than tensor, list, or one dictionary.
    """
    arguments = [arg for arg in module.forward.schema.arguments if arg.type.kind() != "ClassType"]
    kinds = [argument.type.kind() for argument in arguments]
    if kinds == ["DictType"]:
        return [], True
    if "DictType" in kinds[1:]:
        raise internal(
            "Multiple inputs of kind DictType were detected. Only a single input of type Dict(str, Tensor)"
            " is supported."
        )
    for argument, kind in zip(arguments, kinds, strict=True):
        if kind not in ("TensorType", "ListType"):
            raise internal(
                f"An input of type '{argument.type}' was detected in the model. Only a single input of type"
                " Dict(str, Tensor) or input(s) of type Tensor are supported."
            )
    return [argument.name for argument in arguments], False


def _check_types(config: mc.ModelConfig) -> None:
    for name, kind in controls(config):
        if kind not in _TENSORS:
            raise internal(f"input '{name}' type '{kind}' is not supported by PyTorch.")
    for state in config.sequence_batching.state:
        kind = datatype_name(state.data_type)
        if kind not in _SUPPORTED:
            raise internal(
                f"unsupported datatype {kind} for input state '{state.input_name}' for model '{config.name}'"
            )
    for direction, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            kind = datatype_name(tensor.data_type)
            if kind not in _SUPPORTED:
                raise internal(
                    f"unsupported datatype {kind} for {direction} '{tensor.name}' for model '{config.name}'"
                )
            dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
            if kind == "TYPE_STRING" and len(dims) + (config.max_batch_size > 0) > 1:
                raise internal(
                    f"Triton only supports 1 dimensional List of String as {direction} for '{tensor.name}'"
                    f" for model '{config.name}'"
                )


def _to_torch(loaded: _Loaded, name: str, array: Array) -> Any:
    if array.dtype.kind == "O":
        return array.ravel().tolist()  # strings of TorchScript are bytes; only Python decodes them as UTF-8
    if loaded.gpu is not None:
        return _to_gpu(loaded.gpu, name, array, loaded.types.get(name) == "TYPE_BF16")
    if not array.flags.writeable:
        # A model may change its input in place, which must not change the request.
        array = array.copy()
    if loaded.types.get(name) == "TYPE_BF16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_gpu(gpu: CudaDevice, name: str, array: Array, is_bfloat: bool) -> Any:
    """Start to copy an input to the GPU; bfloat16 arrives as uint16 bit patterns."""
    kind = torch.bfloat16 if is_bfloat else _BY_NUMPY[array.dtype.name]
    memory = gpu.allocate(array.nbytes)
    gpu.upload(name, array, memory)
    return memory.view(kind).reshape(array.shape)


def _results(result: Any) -> Sequence[Any]:
    """Return the results of `forward` in order.

    Raises:
        InferError: INTERNAL for anything but tensors, lists of strings and tuples of them.
    """
    if isinstance(result, tuple):
        for index, element in enumerate(result):
            if isinstance(element, list):
                _check_strings(f"output at index {index}", element)
        return result
    if isinstance(result, list):
        _check_strings("output", result)
    if isinstance(result, torch.Tensor | list):
        return [result]
    raise internal(
        "PyTorch execute failure: output must be of type Tensor, List[str] or Tuple containing one of these"
        " two types. It should not be a List / Dictionary of Tensors or a Scalar"
    )


def _from_torch(loaded: _Loaded, name: str, results: Sequence[Any]) -> Any:
    """Return an output in host memory; from a GPU, its data is valid after `wait`."""
    index = loaded.outputs[name]
    if index >= len(results):
        raise invalid_arg(
            f"The output {name} in the model configuration refers to an output index which doesn't exist."
            f" This model has {len(results)} outputs"
        )
    result = results[index]
    if isinstance(result, list):
        return _strings(result)
    if not isinstance(result, torch.Tensor):
        raise invalid_arg(f"output '{name}' must be of type Tensor or List[str].")
    expected, actual = loaded.types[name], _TYPES.get(result.dtype, str(result.dtype))
    if actual != expected:
        raise invalid_arg(
            f"configuration expects datatype {expected} for output '{name}', model provides {actual}"
        )
    if not result.dim():
        raise invalid_arg(f"output '{name}' is a scalar which is not supported.")
    # Always a copy: a module may return a buffer that it reuses for the next request.
    if loaded.gpu is not None:
        return loaded.gpu.download(result.detach().contiguous())
    return result.detach().to("cpu", copy=True).contiguous()


def _to_numpy(host: Any) -> Array:
    if isinstance(host, np.ndarray):
        return host
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(host.numpy())


def _strings(result: list[str]) -> Array:
    array = np.empty(len(result), dtype=object)
    array[:] = result
    return array


def _check_strings(what: str, result: list[Any]) -> None:
    other = next((element for element in result if not isinstance(element, str)), None)
    if other is not None:
        kind = "Tensor" if isinstance(other, torch.Tensor) else type(other).__name__
        raise internal(
            f"PyTorch execute failure: {what} must be of type Tensor or List[str], received List[{kind}]"
        )


def _explained(error: Exception) -> InferError:
    return internal(f"PyTorch execute failure: {_last_line(error)}")


def _last_line(error: Exception) -> str:
    """Return the last line of an error: TorchScript puts its own traceback in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
