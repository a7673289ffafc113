"""Inputs and outputs that files of frameworks say; TorchScript, which says none, is run on zeros."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.datatypes import BY_CONFIG_NAME, DATATYPES, datatype_of
from app.core.errors import InferError
from nereid.migrate.plan import MigrationError

_ROWS: Final = (1, 3)
"""Numbers of rows that are tried: dimensions that follow them are those of rows."""
_BATCH: Final = 8
_NO_TORCH: Final = "to look into '{path}' PyTorch is needed, which is not installed here"


class _Known(NamedTuple):
    """A tensor: a dimension of -1 varies."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


def complete_exported(path: Path, config: mc.ModelConfig) -> None:
    """Complete a configuration with what an exported program says of itself.

    Raises:
        MigrationError: it cannot be read, or has arguments that are no tensors.
    """
    try:
        from backends.pytorch.exported import signature
    except ImportError:
        raise MigrationError(_NO_TORCH.format(path=path)) from None
    try:
        given, returned = signature(path)
    except InferError as error:
        raise MigrationError(error.message) from None
    if not all(hasattr(value, "shape") for value in (*given, *returned)):
        raise MigrationError(f"'{path}' has arguments that are no tensors: write a config.pbtxt yourself")
    tensors = [
        [_Known(f"{name}__{number}", _dtype_of(value), _shape_of(value)) for number, value in enumerate(own)]
        for name, own in (("INPUT", given), ("OUTPUT", returned))
    ]
    _declare(config, *tensors)


def complete_openvino(path: Path, config: mc.ModelConfig) -> None:
    """Complete a configuration with what an OpenVINO model says of itself; not without OpenVINO.

    The backend completes it too, but with every dimension unknown as soon as one of a tensor is variable.

    Raises:
        MigrationError: it cannot be read.
    """
    try:
        import openvino
    except ImportError:
        return
    try:
        model = openvino.Core().read_model(path)
    except RuntimeError as error:
        raise MigrationError(f"'{path}' cannot be read: {_first(error)}") from None
    ports = [list(model.inputs), list(model.outputs)]
    if all(port.names and port.partial_shape.rank.is_static for own in ports for port in own):
        _declare(config, *([_known_port(port) for port in own] for own in ports))


def _known_port(port: Any) -> _Known:
    shape = tuple(size.get_length() if size.is_static else -1 for size in port.partial_shape)
    return _Known(port.any_name, port.element_type.to_dtype(), shape)


def _shape_of(value: Any) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in value.shape)


def _declare(config: mc.ModelConfig, inputs: Sequence[_Known], outputs: Sequence[_Known]) -> None:
    """Declare tensors; where the first dimension of all varies it is that of rows."""
    batched = all(each.shape[:1] == (-1,) for each in (*inputs, *outputs))
    config.max_batch_size = _BATCH if batched else 0
    del config.input[:], config.output[:]
    for declared, known in ((config.input, inputs), (config.output, outputs)):
        for each in known:
            declared.add(name=each.name, data_type=_type(each.dtype), dims=each.shape[batched:])


def complete_scripted(path: Path, config: mc.ModelConfig) -> None:
    """Complete a configuration that has the inputs: with the outputs, and whether the model takes rows.

    Raises:
        MigrationError: the inputs are not told, or the model does not run with them.
    """
    try:
        import torch
    except ImportError:
        raise MigrationError(_NO_TORCH.format(path=path)) from None
    try:
        jit: Any = torch.jit
        module = jit.load(str(path), map_location="cpu").eval()
        names = [argument.name for argument in module.forward.schema.arguments[1:]]
    except (RuntimeError, AttributeError) as error:
        raise MigrationError(f"'{path}' is no TorchScript that can be loaded: {_first(error)}") from None
    if len(config.input) != len(names):
        given = "".join(f" --input {name}:FP32:3,224,224" for name in names)
        raise MigrationError(
            f"TorchScript does not say what it takes: tell it for {', '.join(names)}, with the type and the "
            f"dimensions without that of the rows, e.g.{given}"
        )
    with torch.inference_mode():
        found = [_outputs(torch, module, config, rows) for rows in _ROWS]
        batched = all(one.shape[:1] == (rows,) for rows, own in zip(_ROWS, found, strict=True) for one in own)
    config.max_batch_size = _BATCH if batched else 0
    if not batched:
        for tensor in config.input:
            tensor.dims.insert(0, -1)
    for number, one in enumerate(found[0]):
        dims = one.shape[1:] if batched else one.shape
        config.output.add(name=f"OUTPUT__{number}", data_type=_type(_dtype_of(one)), dims=dims)


def _outputs(torch: Any, module: Any, config: mc.ModelConfig, rows: int) -> list[Any]:
    zeros = []
    for tensor in config.input:
        dtype = BY_CONFIG_NAME[mc.DataType.Name(tensor.data_type)].dtype
        zeros.append(torch.from_numpy(np.zeros([rows, *(max(dim, 1) for dim in tensor.dims)], dtype)))
    try:
        answer = module(*zeros)
    except RuntimeError as error:
        raise MigrationError(f"the model does not run with {rows} rows of zeros: {_first(error)}") from None
    found = list(answer) if isinstance(answer, tuple | list) else [answer]
    if not all(isinstance(one, torch.Tensor) for one in found):
        raise MigrationError(
            "the model answers with something else than tensors: write a config.pbtxt yourself"
        )
    return found


def _dtype_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _type(dtype: Any) -> mc.DataType.ValueType:
    """Return a type of NumPy, or its name, as a configuration has it."""
    kind = "BF16" if dtype == "bfloat16" else datatype_of(np.zeros(0, dtype))
    return mc.DataType.Value(DATATYPES[kind].config_name)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
