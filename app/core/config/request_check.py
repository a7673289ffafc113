"""Checks whether a request fits a model's configuration.

Texts, and the order in which they are found, are those of `InferenceRequest::Normalize` in Triton's core
(src/infer_request.cc). Where Triton walks an unordered map, here the order is the request's, or for several
bad tensors the reverse: of two, Triton names the one given last.
"""

from collections.abc import Callable, Iterable
from math import prod
from struct import Struct
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import WILDCARD, TensorSpec, dims_text, input_specs, output_specs
from app.core.config.request_hints import (
    count_hint,
    datatype_hint,
    missing_batch,
    misspelt_hint,
    shape_hint,
    strange_input,
)
from app.core.datatypes import DATATYPES
from app.core.errors import InferError, invalid_arg
from app.core.hints import did_you_mean, hinted, named
from app.core.tensors import Buffer, InferRequest, Tensor

_INT64_MAX: Final = (1 << 63) - 1
_NAMES_SHOWN: Final = 128
_BATCH_NOTE: Final = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended "
    "to each input shape. If you want to specify the full shape including the batch dim in your input dims "
    "config, try setting max_batch_size to zero. See the model configuration docs for more info on "
    "max_batch_size."
)
_unpack_length: Final = Struct("<I").unpack_from


def _none_is_plain(_: InferRequest) -> int:
    return 0


class RequestChecker:
    """Checks requests for one model version; built once, then used for every request from any thread.

    Args:
        config: the complete configuration.
        plain_rows: returns the batch size of a request that is plainly right, 0 for one that needs every
            check: `PlainCheck.rows`, where that is compiled.
    """

    def __init__(
        self, config: mc.ModelConfig, plain_rows: Callable[[InferRequest], int] = _none_is_plain
    ) -> None:
        specs = input_specs(config)
        self._model: str = config.name
        self._max_batch: int = config.max_batch_size
        self._inputs = {spec.name: spec for spec in specs}
        self._required = frozenset(spec.name for spec in specs if not spec.optional)
        self._outputs = frozenset(spec.name for spec in output_specs(config))
        self._plain_rows = plain_rows

    def check(self, request: InferRequest) -> int:
        """Return the request's batch size: rows along the batch dimension, 1 when the model does not batch.

        Raises:
            InferError: INVALID_ARG with Triton's text when the request does not fit the configuration.
        """
        return self._plain_rows(request) or self._checked_rows(request)

    def _checked_rows(self, request: InferRequest) -> int:
        """Make every check in Triton's order, so that the first failure is the one Triton reports."""
        self._check_names(request)
        rows = self._batch_size(request)
        for tensor in reversed(request.inputs):
            spec = self._inputs[tensor.name]
            self._check_datatype(request, tensor, spec)
            self._check_shape(request, tensor, spec)
            self._check_size(request, tensor, spec, rows)
        if rows == 0:
            # Only tensors without elements get here; a batch of no rows has nothing to execute.
            raise self._error(request, f"inference request batch-size must be >= 1 for '{self._model}'")
        return rows

    def _check_names(self, request: InferRequest) -> None:
        seen: set[str] = set()
        for tensor in request.inputs:
            if tensor.name in seen:
                raise self._error(request, f"input '{tensor.name}' already exists in request")
            seen.add(tensor.name)
        self._check_outputs(request)
        if not len(self._required) <= len(seen) <= len(self._inputs):
            raise self._wrong_count(request)
        for tensor in reversed(request.inputs):
            if tensor.name not in self._inputs:
                raise strange_input(tensor.name, self._model, self._inputs)
        if not self._required <= seen:
            raise self._wrong_count(request)

    def _check_outputs(self, request: InferRequest) -> None:
        seen: set[str] = set()
        for output in request.outputs:
            if output.name in seen:
                raise self._error(request, f"output '{output.name}' already exists in request")
            seen.add(output.name)
        for output in request.outputs:
            if output.name not in self._outputs:
                # Triton looks this name up in the model, which does not know the request's id: no prefix.
                text = f"unexpected inference output '{output.name}' for model '{self._model}'"
                near = did_you_mean(output.name, self._outputs)
                names = f"The model's outputs: {named(sorted(self._outputs))}"
                raise invalid_arg(hinted(text, f"{near} {names}".lstrip()))

    def _wrong_count(self, request: InferRequest) -> InferError:
        names = [tensor.name for tensor in reversed(request.inputs)]
        missing = [name for name in self._inputs if name in self._required and name not in names]
        # Triton's loop leaves "]" where it has nothing to list (too many inputs, none missing).
        missing_text = _name_list(missing) if missing else "]"
        least, most = len(self._required), len(self._inputs)
        expected = f"{most} inputs" if least == most else f"number of inputs between {least} and {most}"
        text = (
            f"expected {expected} but got {len(names)} inputs for model '{self._model}'. "
            f"Got input(s) {_name_list(names)}, but missing required input(s) {missing_text}. "
            "Please provide all required input(s)."
        )
        strangers = [name for name in names if name not in self._inputs]
        hint = misspelt_hint(missing, strangers, "input") or misspelt_hint(
            missing, request.parameters, "parameter"
        )
        return self._error(request, hinted(text, hint))

    def _batch_size(self, request: InferRequest) -> int:
        if not self._max_batch:
            return 1
        rows: int | None = None
        for tensor in request.inputs:
            if not tensor.shape:
                text = "has no shape but model requires batch dimension for"
                raise self._error(request, f"input '{tensor.name}' {text} '{self._model}'")
            if rows is None:
                rows = tensor.shape[0]
            elif tensor.shape[0] != rows:
                text = f"input '{tensor.name}' batch size does not match other inputs for '{self._model}'"
                raise self._error(request, text)
        # Triton keeps the batch size unsigned: a negative one is beyond every limit.
        rows = 1 if rows is None else rows
        if not 0 <= rows <= self._max_batch:
            text = f"inference request batch-size must be <= {self._max_batch} for '{self._model}'"
            hints = (missing_batch(tensor.shape, self._inputs[tensor.name]) for tensor in request.inputs)
            raise self._error(request, hinted(text, next(filter(None, hints), "")))
        return rows

    def _check_datatype(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> None:
        if tensor.datatype != spec.datatype:
            given = tensor.datatype if tensor.datatype in DATATYPES else "<invalid>"
            text = (
                f"inference input '{tensor.name}' data-type is '{given}', "
                f"but model '{self._model}' expects '{spec.datatype}'"
            )
            raise self._error(request, hinted(text, datatype_hint(tensor.datatype)))

    def _check_shape(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> None:
        sizes = tensor.shape[1:] if self._max_batch else tensor.shape
        if len(sizes) != len(spec.dims):
            raise self._unexpected_shape(request, tensor, spec)
        for size, dim in zip(sizes, spec.dims, strict=True):
            if size == WILDCARD:
                raise self._error(
                    request,
                    f"All input dimensions should be specified for input '{tensor.name}' "
                    f"for model '{self._model}', got {dims_text(tensor.shape)}",
                )
            if dim not in (WILDCARD, size):
                raise self._unexpected_shape(request, tensor, spec)

    def _unexpected_shape(self, request: InferRequest, tensor: Tensor, spec: TensorSpec) -> InferError:
        text = (
            f"unexpected shape for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {dims_text(spec.shape)}, got {dims_text(tensor.shape)}. "
            f"{_BATCH_NOTE if self._max_batch else ''}"
        )
        return self._error(request, hinted(text, shape_hint(tensor.shape, spec, self._max_batch > 0)))

    def _check_size(self, request: InferRequest, tensor: Tensor, spec: TensorSpec, rows: int) -> None:
        count = _element_count(tensor, spec.itemsize) if rows else _count_without_rows(tensor, spec.itemsize)
        if spec.itemsize == 0:
            self._check_strings(request, tensor, count)
        elif len(tensor.data) != count * spec.itemsize:
            text = (
                f"input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
                f"Expected {count * spec.itemsize}, got {len(tensor.data)}"
            )
            given, rest = divmod(len(tensor.data), spec.itemsize)
            whole = count and not rest
            raise self._error(request, hinted(text, count_hint(tensor.name, count, given) if whole else ""))

    def _check_strings(self, request: InferRequest, tensor: Tensor, count: int) -> None:
        subject = f"for inference input '{tensor.name}' for model '{self._model}'"
        try:
            found = walk_strings(tensor.data, count)
        except _Incomplete as incomplete:
            raise self._error(request, incomplete.text(subject)) from None
        if found > count:
            text = f"unexpected number of string elements {found} {subject}, expecting {count}"
            raise self._error(request, text)
        if found < count:
            raise self._error(request, f"expected {count} string elements {subject}, got {found}")

    def _error(self, request: InferRequest, text: str) -> InferError:
        return invalid_arg(f"[request id: {request.id or '<id_unknown>'}] {text}")


class _Incomplete(Exception):
    """The bytes of a BYTES tensor end inside an element."""

    def __init__(self, length: int | None, available: int) -> None:
        super().__init__(length, available)
        self.length = length
        self.available = available

    def text(self, subject: str) -> str:
        if self.length is None:
            return (
                f"incomplete string length indicator {subject}, expecting 4 bytes but only {self.available} "
                "bytes available. Please make sure the string length indicator is in one buffer."
            )
        return (
            f"incomplete string data {subject}, expecting string of length {self.length} "
            f"but only {self.available} bytes available"
        )


def walk_strings(data: Buffer, count: int) -> int:
    """Count the length-prefixed elements of a BYTES tensor without making them.

    Args:
        data: the wire bytes; each element is a u32 little-endian length and that many bytes.
        count: elements the shape promises; the walk ends one element after them.

    Returns:
        The number of elements, `count + 1` when there are more than `count`.

    Raises:
        _Incomplete: the data end inside a length or an element.
    """
    position, end, found = 0, len(data), 0
    while position < end:
        if end - position < 4:
            raise _Incomplete(None, end - position)
        (length,) = _unpack_length(data, position)
        position += 4
        found += 1
        if found > count:
            break
        if length > end - position:
            raise _Incomplete(length, end - position)
        position += length
    return found


def _element_count(tensor: Tensor, itemsize: int) -> int:
    """Multiply the shape out, within an int64 as Triton (GetElementCount and GetByteSize in its core)."""
    if any(size < 0 for size in tensor.shape):
        where = dims_text(tensor.shape) if itemsize else f"in shape {dims_text(tensor.shape)}"
        raise invalid_arg(f"tensor '{tensor.name}' contains an invalid dimension {where}")
    count = prod(tensor.shape)
    if count * max(itemsize, 1) > _INT64_MAX or any(size > _INT64_MAX for size in tensor.shape):
        what = "byte size" if itemsize else "element count"
        raise invalid_arg(f"{what} for tensor '{tensor.name}' exceeds maximum size of {_INT64_MAX}")
    return count


def _count_without_rows(tensor: Tensor, itemsize: int) -> int:
    """Choose an element count that the data of a batch of 0 rows cannot have.

    Triton drops a batch dimension of 0 before it counts, so it answers such a request with a size mismatch,
    and takes one that carries a row. Both are refused here.
    """
    count = _element_count(Tensor(tensor.name, tensor.datatype, tensor.shape[1:], b""), itemsize)
    has_a_row = len(tensor.data) == count * itemsize if itemsize else len(tensor.data) > 0
    return 0 if has_a_row else count


def _name_list(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    more = ["..."] if len(shown) > _NAMES_SHOWN else []
    return "[" + ",".join(shown[:_NAMES_SHOWN] + more) + "]"
