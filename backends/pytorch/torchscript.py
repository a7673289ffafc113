"""TorchScript modules (`model.pt`)."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from app.core.errors import internal
from backends.base import Instance, Model
from backends.parameters import boolean
from backends.pytorch.naming import input_arguments, output_indices

_jit: Any = torch.jit  # not typed
_UNKNOWN: Final = re.compile(r"Unknown builtin op: (?P<name>(?P<library>\w+)::[\w.]+\w)")
_VISION: Final = "torchvision"


class TorchScript:
    """A module, and the mapping of the configuration's names to its `forward`.

    Attributes:
        outputs: position of each output among the results.
    """

    def __init__(self, module: Any, instance: Instance) -> None:
        config = instance.model.config
        self.module = module
        arguments, self._takes_dict = _forward_arguments(module)
        names = [tensor.name for tensor in config.input]
        self._arguments = {n: n for n in names} if self._takes_dict else input_arguments(config, arguments)
        self.outputs = output_indices(config)
        self._optimized = not boolean(instance.model, "DISABLE_OPTIMIZED_EXECUTION")

    @staticmethod
    def open(path: Path, model: Model, device: torch.device | None) -> Any:
        """Return the module of a file, on a device; None keeps the device that the file names.

        Raises:
            InferError: INTERNAL with PyTorch's message.
        """
        try:
            return _load(path, device)
        except Exception as error:
            reason = _unknown_operation(error) or _last_line(error)
            raise internal(f"failed to load model '{model.name}': {reason}") from error

    def run(self, tensors: Mapping[str, Any]) -> Sequence[Any]:
        """Return the results of `forward`, in order.

        Raises:
            InferError: INTERNAL with the model's message.
        """
        named = {self._arguments[name]: tensor for name, tensor in tensors.items()}
        try:
            if self._optimized:
                result = self._call(named)
            else:
                with _jit.optimized_execution(False):
                    result = self._call(named)
        except Exception as error:
            raise internal(f"PyTorch execute failure: {_last_line(error)}") from error
        return _results(result)

    def _call(self, named: dict[str, Any]) -> Any:
        return self.module(named) if self._takes_dict else self.module(**named)


def _load(path: Path, device: torch.device | None) -> Any:
    try:
        return _jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        missing = _UNKNOWN.search(str(error))
        if missing is None or missing["library"] != _VISION or find_spec(_VISION) is None:
            raise
    import_module(_VISION)  # Triton's backend always has its operations
    return _jit.load(str(path), map_location=device).eval()


def _unknown_operation(error: Exception) -> str:
    """Return what to do for an operation that PyTorch does not know; "" for another error."""
    missing = _UNKNOWN.search(str(error))
    if missing is None:
        return ""
    libraries = (
        "'op_library_filename' in model_operations of its configuration loads C++ libraries of operations"
    )
    hint = f"it is of the package {_VISION}" if missing["library"] == _VISION else libraries
    return f"unknown operation '{missing['name']}': {hint}"


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


def _check_strings(what: str, result: list[Any]) -> None:
    other = next((element for element in result if not isinstance(element, str)), None)
    if other is not None:
        kind = "Tensor" if isinstance(other, torch.Tensor) else type(other).__name__
        raise internal(
            f"PyTorch execute failure: {what} must be of type Tensor or List[str], received List[{kind}]"
        )


def _last_line(error: Exception) -> str:
    """Return the last line of an error: TorchScript puts its own traceback in front of it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
