"""Ragged batching: inputs whose shape differs within a batch, and tensors made from a batch's shapes.

Kinds and their contents are those of `batch_input` and `batch_output` in Triton's model configuration, as
its backend library makes them (src/backend_input_collector.cc). Shapes are those of requests: the first
dimension is the batch size.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import WILDCARD, datatype_name
from app.core.datatypes import BY_CONFIG_NAME
from app.core.errors import invalid_arg

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class BatchInput(NamedTuple):
    """An input made from the shapes of `source`, once for each of `targets`."""

    kind: str
    targets: tuple[str, ...]
    dtype: np.dtype[Any]
    source: str

    def make(self, shapes: Sequence[Shape]) -> Array:
        """Return the input for requests whose source has these shapes."""
        return np.array(_KINDS[self.kind](shapes), self.dtype)


class Ragged(NamedTuple):
    """Ragged `inputs` of a model, which are joined flat, and `made` inputs, added to each execution."""

    inputs: frozenset[str]
    made: tuple[BatchInput, ...]

    @classmethod
    def from_config(cls, config: mc.ModelConfig) -> "Ragged | None":
        """Read a configuration; return None without ragged inputs, batch inputs and batch outputs."""
        inputs = frozenset(spec.name for spec in config.input if spec.allow_ragged_batch)
        made = tuple(_batch_input(spec) for spec in config.batch_input)
        return cls(inputs, made) if inputs or made or config.batch_output else None

    def batch_inputs(self, shapes: Mapping[str, Sequence[Shape]]) -> dict[str, Array]:
        """Return the made inputs of a batch.

        Args:
            shapes: the shape in each request, by input.

        Raises:
            InferError: INVALID_ARG when the requests lack a source input.
        """
        made: dict[str, Array] = {}
        for batch_input in self.made:
            if batch_input.source not in shapes:
                raise invalid_arg(f"a batch input needs input '{batch_input.source}', which is missing")
            array = batch_input.make(shapes[batch_input.source])
            made.update((target, array) for target in batch_input.targets)
        return made


def scattered(dims: Shape, shape: Shape) -> Shape:
    """Return the shape of a request's part of a scattered output: variable sizes are those of its input.

    Raises:
        InferError: INVALID_ARG when the input has fewer dimensions.
    """
    if any(dim == WILDCARD for dim in dims[len(shape) :]):
        raise invalid_arg("a batch output has more variable dimensions than its source input has dimensions")
    return tuple(shape[place] if dim == WILDCARD else dim for place, dim in enumerate(dims))


def _batch_input(spec: mc.BatchInput) -> BatchInput:
    dtype = BY_CONFIG_NAME[datatype_name(spec.data_type)].dtype
    kind = mc.BatchInput.Kind.Name(spec.kind)
    return BatchInput(kind, tuple(spec.target_name), dtype, spec.source_input[0])


def _counts(shapes: Sequence[Shape]) -> list[int]:
    return [prod(shape) for shape in shapes]


def _item_shapes(shapes: Sequence[Shape]) -> Array:
    """Return int64[batch size, rank]: the shape of every item without the batch dimension."""
    rank = len(shapes[0]) - 1
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    return np.array(rows, np.int64).reshape(len(rows), rank)


_KINDS: Final[dict[str, Callable[[Sequence[Shape]], Any]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda shapes: list(accumulate(_counts(shapes))),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda shapes: [0, *accumulate(_counts(shapes))],
    # Only the shape of this one means something.
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda shapes: np.zeros(max(_counts(shapes))),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda shapes: _item_shapes(shapes).reshape(-1),
}
