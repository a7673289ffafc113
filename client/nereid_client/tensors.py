"""Tensors of PyTorch on a GPU, as inputs and as the results of a pool there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from nereid_client.errors import InputError

_TORCH: Final = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BF16": "bfloat16",
}
"""The dtype of a tensor by the name of its datatype."""


def is_on_gpu(value: Any) -> bool:
    """Return whether a value is a tensor that numpy cannot read."""
    return bool(getattr(value, "is_cuda", False))


def checked(name: str, tensor: Any, datatype: str) -> Any:
    """Return a tensor as it can be sent.

    Raises:
        InputError: it is of another datatype.
    """
    wanted = _TORCH.get(datatype)
    given = str(tensor.dtype).removeprefix("torch.")
    if given != wanted:
        raise InputError(f"input '{name}' is {datatype}, the tensor is {given}: convert it with .to()")
    return tensor.contiguous()


def as_bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor from `checked`, as a tensor."""
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def host_bytes(tensor: Any) -> memoryview:
    """Return a copy of a tensor's bytes on the host."""
    return memoryview(tensor.cpu().numpy())


def write(view: Any, data: Any) -> None:
    """Copy bytes, of a tensor on the GPU or of the host, to where a view is."""
    import torch

    if isinstance(data, memoryview):
        source = np.frombuffer(data, np.uint8)
        # PyTorch warns of memory that must not be written, though it only reads it.
        data = torch.from_numpy(source if source.flags.writeable else source.copy())
    view.copy_(data)


def typed(view: Any, datatype: str, shape: tuple[int, ...]) -> Any:
    """Return the tensor whose bytes a view has."""
    import torch

    return view.view(getattr(torch, _TORCH[datatype])).reshape(shape)
