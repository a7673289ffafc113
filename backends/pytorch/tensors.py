"""Tensors between requests and PyTorch: data types, copies to and from the device."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import datatype_name
from app.core.errors import internal, invalid_arg
from backends.cuda.device import CudaDevice
from backends.declared import controls

Array = npt.NDArray[Any]

TYPES: Final = {
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
_BY_NUMPY: Final = {str(kind).removeprefix("torch."): kind for kind in TYPES}
_TENSORS: Final = frozenset(TYPES.values())
_SUPPORTED: Final = _TENSORS | {"TYPE_STRING"}


def declared_types(config: mc.ModelConfig) -> dict[str, str]:
    """Return the data type of each input, output, control and state, as "TYPE_FP32"."""
    types = {tensor.name: datatype_name(tensor.data_type) for tensor in (*config.input, *config.output)}
    types |= dict(controls(config))
    for state in config.sequence_batching.state:
        types[state.input_name] = types[state.output_name] = datatype_name(state.data_type)
    return types


def check_types(config: mc.ModelConfig) -> None:
    """Check that PyTorch has the data types of a configuration.

    Raises:
        InferError: INTERNAL for one that it has not, and for strings of more than one dimension.
    """
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
            _check_tensor(direction, tensor, config)


def _check_tensor(direction: str, tensor: Any, config: mc.ModelConfig) -> None:
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


def check_dtypes(config: mc.ModelConfig, order: Sequence[str], dtypes: Sequence[Any]) -> None:
    """Compare the declared data types of a model's arguments with those that it was made for.

    Args:
        config: the configuration.
        order: the configuration's name of each argument.
        dtypes: the torch.dtype of each; None for one that is not known.

    Raises:
        InferError: INVALID_ARG for one that differs.
    """
    declared = declared_types(config)
    for name, dtype in zip(order, dtypes, strict=True):
        provided = TYPES.get(dtype, str(dtype))
        if dtype is not None and declared.get(name, provided) != provided:
            raise invalid_arg(
                f"unable to load model '{config.name}', configuration expects datatype {declared[name]} for"
                f" input '{name}', model provides {provided}"
            )


def to_torch(name: str, array: Array, types: Mapping[str, str], gpu: CudaDevice | None) -> Any:
    """Return an input as a tensor on the device of the instance; strings as a list of bytes.

    Args:
        name: the input's.
        array: BF16 as uint16 bit patterns, BYTES as objects.
        types: the declared data types.
        gpu: where the tensor goes; None for CPU memory.
    """
    if array.dtype.kind == "O":
        return array.ravel().tolist()  # strings of TorchScript are bytes; only Python decodes them as UTF-8
    is_bfloat = types.get(name) == "TYPE_BF16"
    if gpu is not None:
        return _to_gpu(gpu, name, array, is_bfloat)
    if not array.flags.writeable:
        # A model may change its input in place, which must not change the request.
        array = array.copy()
    if is_bfloat:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_gpu(gpu: CudaDevice, name: str, array: Array, is_bfloat: bool) -> Any:
    """Start to copy an input to the GPU."""
    kind = torch.bfloat16 if is_bfloat else _BY_NUMPY[array.dtype.name]
    memory = gpu.allocate(array.nbytes)
    gpu.upload(name, array, memory)
    return memory.view(kind).reshape(array.shape)


def from_torch(name: str, result: Any, expected: str, gpu: CudaDevice | None) -> Any:
    """Return an output in host memory of its own; from a GPU, its data is valid after `wait`.

    Raises:
        InferError: INVALID_ARG for a result of another data type than `expected`, a scalar, and anything
            but a tensor or a list of strings.
    """
    if isinstance(result, list):
        return _strings(result)
    if not isinstance(result, torch.Tensor):
        raise invalid_arg(f"output '{name}' must be of type Tensor or List[str].")
    actual = TYPES.get(result.dtype, str(result.dtype))
    if actual != expected:
        raise invalid_arg(
            f"configuration expects datatype {expected} for output '{name}', model provides {actual}"
        )
    if not result.dim():
        raise invalid_arg(f"output '{name}' is a scalar which is not supported.")
    # Always a copy: a module may return a buffer that it reuses for the next request.
    if gpu is not None:
        return gpu.download(result.detach().contiguous())
    if result.is_cpu:
        return result.clone(memory_format=torch.contiguous_format)
    return result.detach().to("cpu", copy=True).contiguous()


def to_numpy(host: Any) -> Array:
    """Return what `from_torch` returned as an array; BF16 as uint16 bit patterns."""
    if isinstance(host, np.ndarray):
        return host
    if host.dtype == torch.bfloat16:
        return np.asarray(host.view(torch.int16).numpy().view(np.uint16))
    return np.asarray(host.numpy())


def _strings(result: list[str]) -> Array:
    array = np.empty(len(result), dtype=object)
    array[:] = result
    return array
