"""Tensors that go from one model to the next: their names, and dimensions that only one of the two counts."""

from app.core.config.model_config import WILDCARD, TensorSpec
from app.core.tensors import Tensor


def renamed(tensor: Tensor, name: str, spec: TensorSpec | None) -> Tensor:
    """Return the same bytes under another name; a batch dimension of 1 is added or removed to fit `spec`."""
    shape = tensor.shape
    if spec is not None and len(shape) != len(spec.shape):
        if len(spec.shape) == len(shape) + 1 and len(spec.dims) == len(shape):
            shape = (1, *shape)
        elif spec.shape == spec.dims and shape[:1] == (1,) and _fits(shape[1:], spec.dims):
            shape = shape[1:]
    return Tensor(name, tensor.datatype, shape, tensor.data)


def reshaped(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return an input of the ensemble in the shape that its steps get."""
    if spec.reshape is None:
        return tensor
    return Tensor(tensor.name, tensor.datatype, spec.backend_shape(tensor.shape), tensor.data)


def as_output(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return a tensor of a step as an output of the ensemble, in the shape that the client gets."""
    output = renamed(tensor, spec.name, spec.reshaped)
    if spec.reshape is None or len(output.shape) != len(spec.reshaped.shape):
        return output
    return Tensor(spec.name, output.datatype, spec.client_shape(output.shape), output.data)


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    fits = (dim in (WILDCARD, size) for size, dim in zip(shape, expected, strict=False))
    return len(shape) == len(expected) and all(fits)
