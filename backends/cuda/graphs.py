"""CUDA graphs that `optimization.cuda` of a configuration asks for, and the choice of one for a batch.

A graph is a recorded execution at fixed shapes and addresses. The batch sizes recorded by default, the checks
and their texts are those of Triton's tensorrt backend (src/instance_state.cc).
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from backends.signature import Shape

T = TypeVar("T")
Shapes = Mapping[str, Shape]

# Graphs help small batches most.
_BATCH_SIZES: Final = (1, 2, 3, 4, 6, 8, 12, 16)


class GraphSpec(NamedTuple):
    """One graph to record.

    Attributes:
        batch_size: rows; 0 for a model that does not batch.
        shapes: shapes of inputs, batch dimension excluded; other inputs have the model's preferred shape.
        lowest_batch_size: smallest batch that may execute by this graph, padded to `batch_size`.
    """

    batch_size: int
    shapes: Shapes
    lowest_batch_size: int


def graph_specs(config: mc.ModelConfig) -> list[GraphSpec]:
    """Return the graphs that a configuration asks for, the smallest first; none unless `cuda.graphs` is set.

    Raises:
        InferError: INVALID_ARG for an impossible batch size or shape.
    """
    cuda = config.optimization.cuda
    if not cuda.graphs:
        return []
    if not cuda.graph_spec:
        return [GraphSpec(size, {}, size) for size in _default_batch_sizes(config)]
    specs = [_read(spec) for spec in cuda.graph_spec]
    for spec in specs:
        _check_batch_sizes(spec, config.max_batch_size)
    return sorted(specs, key=lambda spec: spec.batch_size)


def _default_batch_sizes(config: mc.ModelConfig) -> list[int]:
    largest = config.max_batch_size
    if not largest:
        return [0]
    preferred = (
        config.dynamic_batching.preferred_batch_size
        or config.sequence_batching.oldest.preferred_batch_size
        or _BATCH_SIZES
    )
    # Normalisation fills in the largest batch alone, which is no preference of the user.
    sizes = _BATCH_SIZES if list(preferred) == [largest] else preferred
    return sorted({1, largest, *(size for size in sizes if 0 < size <= largest)})


def _read(spec: mc.ModelOptimizationPolicy.Cuda.GraphSpec) -> GraphSpec:
    shapes = {name: tuple(shape.dim) for name, shape in spec.input.items()}
    lowest = spec.batch_size
    if spec.HasField("graph_lower_bound"):
        lowest = spec.graph_lower_bound.batch_size
        _check_lower_bounds(shapes, spec.graph_lower_bound.input)
    return GraphSpec(spec.batch_size, shapes, lowest)


def _check_batch_sizes(spec: GraphSpec, largest: int) -> None:
    sizes = (spec.batch_size, spec.lowest_batch_size)
    if not largest:
        if any(sizes):
            raise invalid_arg("graph spec expects 'batch_size' to be 0 if 'max_batch_size' is 0")
    elif not all(1 <= size <= largest for size in sizes):
        raise invalid_arg(f"graph spec expects 'batch_size' to be >= 1 and <= {largest}")
    if spec.lowest_batch_size > spec.batch_size:
        raise invalid_arg("graph lower bound spec expects 'batch_size' to be <= graph spec 'batch_size'")


def _check_lower_bounds(
    shapes: Shapes, bounds: Mapping[str, mc.ModelOptimizationPolicy.Cuda.GraphSpec.Shape]
) -> None:
    for name, shape in shapes.items():
        if name not in bounds:
            raise invalid_arg(f"graph lower bound spec expects shape for input '{name}'")
        bound = bounds[name].dim
        if len(bound) != len(shape):
            raise invalid_arg(
                f"graph lower bound spec expects to have '{len(shape)}' dimensions, got {len(bound)}"
            )
        for low, size in zip(bound, shape, strict=True):
            if min(low, size) < 0:
                raise invalid_arg(f"graph spec expects input '{name}' to have dimension >= 0")
            if low > size:
                raise invalid_arg(
                    f"graph lower bound spec expects input '{name}' to have dimension <= {size}"
                )


def graph_shapes(spec: GraphSpec, preferred: Shapes) -> dict[str, Shape]:
    """Return the full shapes of a graph's inputs: the configuration's, else the model's preferred ones."""
    rows = (spec.batch_size,) if spec.batch_size else ()
    return {name: (*rows, *spec.shapes.get(name, shape[len(rows) :])) for name, shape in preferred.items()}


class Recorded(NamedTuple, Generic[T]):
    """A recorded graph and the shapes of its inputs, batch dimension included."""

    spec: GraphSpec
    shapes: Shapes
    graph: T

    def cut(self, output: Shape, shapes: Shapes) -> Shape:
        """Return an output's shape without the rows that are padding for inputs of these shapes."""
        size = self.spec.batch_size
        if not size or self.shapes == shapes or output[:1] != (size,):
            return output
        return (next(iter(shapes.values()))[0], *output[1:])


class GraphTable(Generic[T]):
    """The recorded graphs of an instance."""

    def __init__(self) -> None:
        self._recorded: list[Recorded[T]] = []

    def record(self, spec: GraphSpec, shapes: Shapes, capture: Callable[[], T]) -> None:
        """Record and add a graph, unless there is one of these shapes."""
        if not any(shapes == other.shapes for other in self._recorded):
            self._recorded.append(Recorded(spec, shapes, capture()))

    def __len__(self) -> int:
        return len(self._recorded)

    def find(self, shapes: Shapes) -> Recorded[T] | None:
        """Return the graph for inputs of these shapes: an exact one, else the smallest that covers them.

        Only rows are padded: padding another dimension would move elements.
        """
        covering = None
        for recorded in self._recorded:
            if recorded.shapes == shapes:
                return recorded
            if covering is None and _covers(recorded, shapes):
                covering = recorded
        return covering


def _covers(recorded: Recorded[T], shapes: Shapes) -> bool:
    lowest, size = recorded.spec.lowest_batch_size, recorded.spec.batch_size
    return lowest < size and all(
        shape[1:] == recorded.shapes[name][1:] and lowest <= shape[0] <= size == recorded.shapes[name][0]
        for name, shape in shapes.items()
    )
