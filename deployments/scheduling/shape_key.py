"""Which requests may share a batch."""

from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest


class ShapeKey:
    """Tells which requests may share a batch: equal shapes but for the batch dimension, same inputs.

    Inputs with `allow_ragged_batch` may differ in shape. None for every request of a model whose
    configuration leaves no choice, which is the common case.
    """

    def __init__(self, config: mc.ModelConfig) -> None:
        self._ragged = frozenset(spec.name for spec in config.input if spec.allow_ragged_batch)
        self._fixed = all(
            not spec.optional and (spec.allow_ragged_batch or -1 not in spec.dims) for spec in config.input
        )

    def __call__(self, request: InferRequest) -> tuple[object, ...] | None:
        if self._fixed:
            return None
        if len(request.inputs) == 1 and not self._ragged:
            tensor = request.inputs[0]
            return (tensor.name, tensor.shape[1:])
        ragged = self._ragged
        return tuple(
            sorted(
                (tensor.name, () if tensor.name in ragged else tensor.shape[1:]) for tensor in request.inputs
            )
        )
