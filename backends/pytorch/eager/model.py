"""Executes eager PyTorch models: `backend: "pytorch"` with `runtime: "model.py"`.

The version directory has `model.py`, which defines a `torch.nn.Module`, and its weights in `model.pt`. As in
Triton, this is a Python model that executes all of them: in the replica, or in processes and environments of
their own, like any Python model. Inputs are passed in the order of the configuration, and results have that
of its outputs. Rules and texts are those of Triton's pytorch backend (src/model.py).

An environment of a model's own needs torch and numpy, and none of our packages.
"""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import triton_python_backend_utils as pb_utils

from app.core.files.paths import path_inside
from app.core.files.private_files import private_root
from app.core.system.cpus import available_cpus

try:
    import torch
except ModuleNotFoundError as error:
    raise RuntimeError("Missing/Incomplete PyTorch package installation") from error

_THREADS: Final = "NUM_THREADS"
_POOLS: Final = "NUM_INTEROP_THREADS"
_COMPILE: Final = "TORCH_COMPILE_OPTIONAL_PARAMETERS"


class TritonPythonModel:
    """One instance of an eager model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the module and its weights, and run it once.

        Raises:
            pb_utils.TritonModelException: there is no module, or a parameter is wrong.
        """
        config = json.loads(args["model_config"])
        self._name = args["model_name"]
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]
        self._batches = int(config["max_batch_size"]) > 0
        self._log = pb_utils.Logger
        self._log.log_info(f"Initializing model instance for '{self._name}'")
        _set_threads(config, self._name, self._log)
        options = _compile_options(config)
        self._log.log_verbose(f"'torch.compile' optional parameter(s) for '{self._name}': {options}")
        path = _model_path(config, args)
        device = _named_device(args["model_instance_kind"], args["model_instance_device_id"])
        if path.endswith(".py"):
            module = self._with_weights(_module_class(path, self._name)(), path, device)
            self._device = device or _own_device(module)
            self._module = self._compiled(module.to(self._device).eval(), options)
        else:
            self._log.log_info(f"Loading '{self._name}' as TorchScript")
            module = torch.jit.load(path, map_location=device).eval()  # type: ignore[no-untyped-call]
            self._device = device or _own_device(module)
            self._module = module
        self._warm_up(config)

    def _with_weights(self, module: Any, path: str, device: Any) -> Any:
        weights = f"{path[: -len('.py')]}.pt"
        if os.path.exists(weights):
            module.load_state_dict(_state_dict(weights, device))
        else:
            self._log.log_info(f"Model parameter file not found for '{self._name}'")
        return module

    def _compiled(self, module: Any, options: dict[str, Any]) -> Any:
        """Return the module compiled by torch.compile, which needs a compiler."""
        if options.get("disable"):
            return module
        missing = _missing_compiler(self._device.type)
        if missing:
            text = f"no {missing}: '{self._name}' is executed eagerly, not by 'torch.compile'"
            self._log.log_warn(text)
            return module
        # By default the compiled code lies where another user of this machine may have put files before.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(private_root(), "inductor"))
        return torch.compile(module, **options)

    def _warm_up(self, config: dict[str, Any]) -> None:
        """Run the sizes of batch that torch.compile treats differently, before READY: it takes seconds."""
        limit = int(config["max_batch_size"])
        for size in sorted({1, min(2, limit), limit}) if limit else (0,):
            try:
                with torch.inference_mode():
                    self._module(*[self._zeros(tensor, size) for tensor in config["input"]])
            except Exception as error:  # -1 is taken for 1, which may be no size that the model has
                self._log.log_info(f"'{self._name}' did not run with inputs of zeros: {error}")
                return

    def _zeros(self, tensor: dict[str, Any], size: int) -> Any:
        reshape = tensor.get("reshape")
        dims = tensor["dims"] if reshape is None else reshape.get("shape", [])
        shape = [max(1, int(dim)) for dim in dims]
        kind = _TORCH_TYPES[tensor["data_type"]]
        return torch.zeros([size, *shape] if self._batches else shape, dtype=kind, device=self._device)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Execute requests joined along axis 0; if that fails, each alone: only one may be at fault."""
        if len(requests) == 1:
            return [self._alone(requests[0])]
        inputs = [self._tensors(request) for request in requests]
        try:
            joined = [torch.cat(column) for column in zip(*inputs, strict=True)]
            results = self._results(joined)
            counts = [tensors[0].shape[0] for tensors in inputs]
            split = [torch.split(result, counts) for result in results]
        except Exception:
            return [self._alone(request) for request in requests]
        return [self._response(rows) for rows in zip(*split, strict=True)]

    def _alone(self, request: Any) -> Any:
        try:
            return self._response(self._results(self._tensors(request)))
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _tensors(self, request: Any) -> list[Any]:
        found = [pb_utils.get_input_tensor_by_name(request, name) for name in self._inputs]
        return [torch.utils.dlpack.from_dlpack(tensor).to(self._device) for tensor in found]

    def _results(self, inputs: list[Any]) -> Sequence[Any]:
        with torch.inference_mode():
            result = self._module(*inputs)
        return result if isinstance(result, tuple | list) else [result]

    def _response(self, results: Sequence[Any]) -> Any:
        tensors = [
            pb_utils.Tensor.from_dlpack(name, result.detach().contiguous())
            for name, result in zip(self._outputs, results, strict=False)
        ]
        return pb_utils.InferenceResponse(tensors)

    def finalize(self) -> None:
        """Drop the module."""
        self._log.log_info(f"Removing model instance for '{self._name}'")
        del self._module


_TORCH_TYPES: Final = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_UINT16": torch.uint16,
    "TYPE_UINT32": torch.uint32,
    "TYPE_UINT64": torch.uint64,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_BF16": torch.bfloat16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
}


def _parameter(config: dict[str, Any], key: str) -> str:
    return str(config.get("parameters", {}).get(key, {}).get("string_value", ""))


def _set_threads(config: dict[str, Any], name: str, log: Any) -> None:
    """Set the threads of the process; by default an equal share of the CPUs within an operator."""
    groups = [group for group in config.get("instance_group", ()) if group.get("kind") != "KIND_GPU"]
    count = sum(int(group.get("count", 1)) for group in groups)
    within = _number(config, _THREADS, max(1, available_cpus() // max(1, count)))
    between = _number(config, _POOLS, 1)
    torch.set_num_threads(within)
    if torch.get_num_interop_threads() != between:
        try:
            torch.set_num_interop_threads(between)
        except RuntimeError as error:  # once in a process, before its first use
            log.log_warn(f"{_POOLS} of model '{name}' is not set: {error}")
    settings = f"{_THREADS} = {within}; {_POOLS} = {between}; "
    log.log_verbose(f"Torch parallelism settings for '{name}': {settings}")


def _number(config: dict[str, Any], key: str, default: int) -> int:
    value = _parameter(config, key)
    try:
        return int(value) if value else default
    except ValueError:
        text = f"parameter '{key}': failed to convert '{value}' to integral number"
        raise pb_utils.TritonModelException(text) from None


def _compile_options(config: dict[str, Any]) -> dict[str, Any]:
    value = _parameter(config, _COMPILE)
    try:
        options = json.loads(value or "{}")
    except ValueError as error:
        raise pb_utils.TritonModelException(f"parameter '{_COMPILE}' is no JSON: {error}") from None
    if "model" in options:
        raise pb_utils.TritonModelException("'model' is not an optional parameter for 'torch.compile'")
    return dict(options)


def _missing_compiler(device: str) -> str:
    """Name the compiler that code for a device needs and that is not there; "" if nothing is missing."""
    if device == "cpu":
        language, names = "C++", [os.environ.get("CXX", "g++")]
    elif device == "cuda":  # as Triton looks for one, which compiles the host's side of each kernel
        language, names = "C", [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    else:
        return ""
    return "" if any(map(shutil.which, names)) else f"{language} compiler '{names[0]}'"


def _model_path(config: dict[str, Any], args: Mapping[str, str]) -> str:
    """Return the model's file: that of the configuration, else `model.py`, else `model.pt`.

    Raises:
        pb_utils.TritonModelException: there is none, or it is outside of the model's directory.
    """
    directory = os.path.join(args["model_repository"], args["model_version"])
    given = config.get("default_model_filename")
    names = [*([given] if given else []), "model.py", "model.pt"]
    for name in names:
        path = os.path.join(directory, name)
        if os.path.exists(path):
            if path_inside(args["model_repository"], name, args["model_version"]) is None:
                text = f"model file '{name}' escapes the directory of model '{args['model_name']}'"
                raise pb_utils.TritonModelException(text)
            return path
    raise pb_utils.TritonModelException(f"No model found in {directory}/{names}")


def _module_class(path: str, name: str) -> Any:
    """Import the file and return the first of its classes of modules by name, its own before imported ones.

    Raises:
        pb_utils.TritonModelException: there is none.
    """
    spec = importlib.util.spec_from_file_location(f"{name}_module", path)
    if spec is None or spec.loader is None:
        raise pb_utils.TritonModelException(f"'{path}' is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    known = [getattr(module, each) for each in dir(module)]
    found = [each for each in known if isinstance(each, type) and issubclass(each, torch.nn.Module)]
    own = [each for each in found if each.__module__ == module.__name__]
    if not found:
        raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module")
    return (own or found)[0]


def _state_dict(path: str, device: Any) -> Any:
    """Read weights.

    Raises:
        pb_utils.TritonModelException: the file has anything but weights.
    """
    from backends.pytorch.eager.weights import read_weights

    try:
        return read_weights(path, device)
    except ValueError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def _named_device(kind: str, number: str) -> Any:
    """Return the device of an instance; None for KIND_MODEL, whose module says."""
    if kind == "MODEL":
        return None
    return torch.device("cuda", int(number)) if kind == "GPU" else torch.device("cpu")


def _own_device(module: Any) -> Any:
    for parameter in module.parameters():
        return parameter.device
    raise pb_utils.TritonModelException("Cannot determine model device")
