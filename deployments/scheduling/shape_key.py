"""The key by which requests may share a batch: the shapes of their inputs."""

from collections.abc import Callable

from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest

ShapeKey = Callable[[InferRequest], tuple[object, ...]]
"""Returns a value that is equal for requests with the same inputs, of equal shapes but for the batch
dimension; inputs with `allow_ragged_batch` may differ in shape."""


def make_shape_key(config: mc.ModelConfig) -> ShapeKey | None:
    """Return the key of a model's requests; None where its configuration makes all of them equal."""
    if all(not spec.optional and (spec.allow_ragged_batch or -1 not in spec.dims) for spec in config.input):
        return None
    if len(config.input) == 1 and not config.input[0].optional:
        return _only_shape
    ragged = frozenset(spec.name for spec in config.input if spec.allow_ragged_batch)

    def shape_key(request: InferRequest) -> tuple[object, ...]:
        shapes = [
            (tensor.name, () if tensor.name in ragged else tensor.shape[1:]) for tensor in request.inputs
        ]
        return tuple(sorted(shapes))

    return shape_key


def _only_shape(request: InferRequest) -> tuple[object, ...]:
    """Return the key of a request to a model with one input, which it has to have."""
    return request.inputs[0].shape[1:]
