"""Joining the inputs of a batch into arrays, and splitting the arrays of its outputs into responses.

Inputs are joined as bytes, without a numpy call for each; every output tensor is a view of its request's own
rows of the joined output.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from math import prod
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from app.core.config.model_config import dims_text
from app.core.datatypes import DATATYPES, pack_bytes
from app.core.errors import internal
from app.core.tensors import SMALL, Tensor, flat_bytes
from backends.base import Request
from backends.ragged import Ragged, scattered
from backends.signature import Output, Shape, Signature

Array = npt.NDArray[Any]
Target = Callable[[str, Shape, np.dtype[Any]], Array]

# Above this, numpy's copy, which releases the GIL, costs less than holding it for the other instances.
_COPY_OUTSIDE_GIL = 256 * 1024

# A `map` over these costs a fraction of a loop in Python.
_NAME: Final = attrgetter("name")
_SHAPE: Final = attrgetter("shape")
_DATATYPE: Final = attrgetter("datatype")
_DATA: Final = attrgetter("data")
_INPUTS: Final = attrgetter("infer.inputs")


class Unmergeable(Exception):
    """The requests cannot share an execution, although the scheduler formed a batch of them."""


def view_input(tensor: Tensor, signature: Signature) -> Array:
    """Return one request's input as an array of the model's shape, without a copy."""
    shape = tensor.shape
    if signature.reshapes:
        shape = signature.model_shape(tensor.name, shape)
    return as_array(tensor, signature).reshape(shape)


def as_array(tensor: Tensor, signature: Signature) -> Array:
    """Return one request's input as the framework takes it, in the client's shape."""
    return tensor.text_array() if signature.text and tensor.datatype == "BYTES" else tensor.array()


def join_inputs(requests: Sequence[Request], signature: Signature, target: Target | None) -> dict[str, Array]:
    """Return the inputs of several requests by name, joined along axis 0.

    Raises:
        Unmergeable: names, data types or shapes differ.
        InferError: INVALID_ARG for a malformed BYTES tensor.
    """
    return {column[0].name: _join_column(column, signature, target) for column in _columns(requests)}


def join_ragged(
    requests: Sequence[Request], signature: Signature, ragged: Ragged, target: Target | None
) -> dict[str, Array]:
    """Return the inputs of requests to a model with ragged or batch inputs, joined, by name.

    Raises:
        Unmergeable: names or data types differ, or the shapes of an input that is not ragged.
        InferError: INVALID_ARG for a malformed BYTES tensor.
    """
    feed: dict[str, Array] = {}
    shapes: dict[str, list[Shape]] = {}
    for column in _columns(requests):
        name = column[0].name
        shapes[name] = [tensor.shape for tensor in column]
        join = _join_flat if name in ragged.inputs else _join_column
        feed[name] = join(column, signature, target)
    return feed | ragged.batch_inputs(shapes)


def _columns(requests: Sequence[Request]) -> list[tuple[Tensor, ...]]:
    """Return, for each input, the tensors of all requests."""
    rows = list(map(_INPUTS, requests))
    try:
        columns = list(zip(*rows, strict=True))
        if not all(_are_equal(_NAME, column) for column in columns):
            columns = list(zip(*(sorted(row, key=_NAME) for row in rows), strict=True))
    except ValueError:
        raise Unmergeable from None
    return columns


def _are_equal(attribute: Callable[[Tensor], object], column: Sequence[Tensor]) -> bool:
    values = list(map(attribute, column))
    return values.count(values[0]) == len(values)


def _join_column(column: Sequence[Tensor], signature: Signature, target: Target | None) -> Array:
    first = column[0]
    if not (_are_equal(_NAME, column) and _are_equal(_DATATYPE, column)):
        raise Unmergeable
    shapes = list(map(_SHAPE, column))
    count, *tail = first.shape
    if shapes.count(first.shape) == len(shapes):
        count *= len(shapes)
    elif any(shape[1:] != first.shape[1:] for shape in shapes):
        raise Unmergeable
    else:
        count = sum([shape[0] for shape in shapes])
    shape = signature.model_shape(first.name, (count, *tail))
    if first.datatype == "BYTES":
        return _join_bytes(column, shape, signature)
    return _concatenate(column, shape, target)


def _join_flat(column: Sequence[Tensor], signature: Signature, target: Target | None) -> Array:
    """Join a ragged input to one dimension: the elements of all requests, one after the other."""
    name, datatype = column[0].name, column[0].datatype
    if any(tensor.name != name or tensor.datatype != datatype for tensor in column):
        raise Unmergeable
    shape = (sum(prod(tensor.shape) for tensor in column),)
    if datatype == "BYTES":
        return _join_bytes(column, shape, signature)
    return _concatenate(column, shape, target)


def _concatenate(column: Sequence[Tensor], shape: Shape, target: Target | None) -> Array:
    dtype = DATATYPES[column[0].datatype].dtype
    buffers = list(map(_DATA, column))
    if target is not None:
        joined = target(column[0].name, shape, dtype)
        np.concatenate([np.frombuffer(buffer, dtype) for buffer in buffers], out=joined.reshape(-1))
        return joined
    if prod(shape) * dtype.itemsize < _COPY_OUTSIDE_GIL:
        return np.ndarray(shape, dtype, bytearray().join(buffers))
    return np.concatenate([np.frombuffer(buffer, dtype) for buffer in buffers]).reshape(shape)


def _join_bytes(column: Sequence[Tensor], shape: Shape, signature: Signature) -> Array:
    return np.concatenate([as_array(tensor, signature).reshape(-1) for tensor in column]).reshape(shape)


def wanted_outputs(selections: Sequence[tuple[Output, ...]], signature: Signature) -> tuple[Output, ...]:
    """Return the outputs that any request of the batch asks for, in the configuration's order."""
    first = selections[0]
    if first is signature.outputs or selections.count(first) == len(selections):
        return first
    wanted = {output.name for selection in selections for output in selection}
    return tuple(output for output in signature.outputs if output.name in wanted)


def output_tensor(output: Output, array: Array) -> Tensor:
    shape = array.shape
    if output.reshaped:
        shape = output.spec.client_shape(shape)
    elif array.nbytes <= SMALL and output.datatype != "BYTES":
        return Tensor(output.name, output.datatype, shape, array.tobytes())
    if output.datatype == "BYTES":
        return Tensor(output.name, "BYTES", shape, pack_bytes(array.ravel().tolist()))
    return Tensor(output.name, output.datatype, shape, flat_bytes(array))


def split_outputs(
    arrays: dict[str, Array],
    requests: Sequence[Request],
    selections: Sequence[tuple[Output, ...]],
    signature: Signature,
) -> Iterable[tuple[Tensor, ...]]:
    """Return the output tensors of each request, views of the joined outputs."""
    counts = [request.infer.inputs[0].shape[0] for request in requests]
    wanted = wanted_outputs(selections, signature)
    columns = [
        _scatter(output, arrays[output.name], requests, signature)
        if output.scatter
        else [output_tensor(output, arrays[output.name])]
        if len(requests) == 1
        else _cut(output, arrays[output.name], counts, signature)
        for output in wanted
    ]
    rows = zip(*columns, strict=True)
    if selections.count(wanted) == len(selections):
        return rows
    return [
        tuple([tensor for output, tensor in zip(wanted, row, strict=True) if output in selection])
        for row, selection in zip(rows, selections, strict=True)
    ]


def _cut(output: Output, array: Array, counts: Sequence[int], signature: Signature) -> list[Tensor]:
    total = sum(counts)
    if not array.ndim or array.shape[0] != total:
        raise internal(
            f"output '{output.name}' of model '{signature.model_name}' has shape {dims_text(array.shape)}"
            f" for a batch of {total}"
        )
    tail = () if output.scatter else output.spec.client_shape(array.shape)[1:]
    if output.datatype == "BYTES":
        return _cut_bytes(output.name, array, counts, tail)
    data = flat_bytes(array)
    width = len(data) // total if total else 0
    name, datatype = output.name, output.datatype
    if counts.count(counts[0]) == len(counts) and width:
        size = counts[0] * width
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        return list(map(Tensor, repeat(name), repeat(datatype), repeat((counts[0], *tail)), parts))
    tensors, start = [], 0
    for count in counts:
        stop = start + count * width
        tensors.append(Tensor(name, datatype, (count, *tail), data[start:stop]))
        start = stop
    return tensors


def _scatter(output: Output, array: Array, requests: Sequence[Request], signature: Signature) -> list[Tensor]:
    """Return the part of an output that each request's own input shape describes.

    Raises:
        InferError: INTERNAL when the parts do not add up to the output.
    """
    inputs = [_named(request, output.scatter) for request in requests]
    shapes = [scattered(output.spec.shape, tensor.shape) for tensor in inputs]
    counts = [prod(shape) for shape in shapes]
    if sum(counts) != array.size:
        raise internal(
            f"output '{output.name}' of model '{signature.model_name}' has {array.size} elements for a batch"
            f" whose input '{output.scatter}' asks for {sum(counts)}"
        )
    parts = _cut(output, array.reshape(-1), counts, signature)
    return [
        Tensor(part.name, part.datatype, shape, part.data) for part, shape in zip(parts, shapes, strict=True)
    ]


def _named(request: Request, name: str) -> Tensor:
    for tensor in request.infer.inputs:
        if tensor.name == name:
            return tensor
    raise internal(f"a batch output needs input '{name}', which the request does not have")


def _cut_bytes(name: str, array: Array, counts: Sequence[int], tail: Shape) -> list[Tensor]:
    tensors, start = [], 0
    for count in counts:
        packed = pack_bytes(array[start : start + count].ravel().tolist())
        tensors.append(Tensor(name, "BYTES", (count, *tail), packed))
        start += count
    return tensors
