"""What a client can do about a request that does not fit a model's configuration."""

from collections.abc import Iterable, Mapping, Sequence

from app.core.config.model_config import WILDCARD, TensorSpec, dims_text
from app.core.datatypes import DATATYPES
from app.core.errors import InferError, invalid_arg
from app.core.hints import did_you_mean, hinted, named


def shape_hint(shape: Sequence[int], spec: TensorSpec, batched: bool) -> str:
    """Say in which dimensions a shape differs from the one expected.

    Args:
        shape: of the tensor; the batch dimension included, as in `spec.shape`.
        batched: whether the first dimension is a batch dimension.
    """
    expected = spec.shape
    if batched and (missing := missing_batch(shape, spec)):
        return missing
    if len(shape) != len(expected):
        return f"{len(shape)} dimensions are given, {len(expected)} expected"
    pairs = enumerate(zip(shape, expected, strict=True))
    wrong = [(axis, size, dim) for axis, (size, dim) in pairs if dim not in (WILDCARD, size)]
    differ = ", ".join(
        f"dimension {axis} is {dims_text([size])[1:-1]}, expected {dim}" for axis, size, dim in wrong
    )
    if len(wrong) > 1 and _fits(sorted(shape), sorted(expected)):
        return f"{differ}: the dimensions are in another order"
    return differ


def missing_batch(shape: Sequence[int], spec: TensorSpec) -> str:
    """Say that a shape is that of one row, without the batch dimension in front; "" if it is not."""
    if not _fits(shape, spec.dims):
        return ""
    return f"the batch dimension is missing: one row is {dims_text((1, *shape))}"


def _fits(shape: Sequence[int], dims: Sequence[int]) -> bool:
    return len(shape) == len(dims) and all(
        dim in (WILDCARD, size) for size, dim in zip(shape, dims, strict=True)
    )


def datatype_hint(given: str) -> str:
    """Name the data type that somebody meant who writes it as numpy or a configuration does."""
    if given in DATATYPES or not given.isidentifier():  # "<invalid>", of a warm-up without a type
        return ""
    name = given.upper().removeprefix("TYPE_").replace("FLOAT", "FP")
    name = {"STRING": "BYTES", "OBJECT": "BYTES", "STR": "BYTES", "BFP16": "BF16"}.get(name, name)
    names = f"the data types are {', '.join(DATATYPES)}"
    return f"'{given}' is written '{name}'" if name in DATATYPES else names


def names_hint(name: str, inputs: Mapping[str, TensorSpec]) -> str:
    """Name the inputs there are, and the one that resembles a name that is none."""
    near = did_you_mean(name, inputs)
    return f"{near}{' ' if near else ''}The model's inputs: {named(inputs)}"


def misspelt_hint(missing: Iterable[str], others: Iterable[str], kind: str) -> str:
    """Name the parameter that resembles an input that is missing: the name of an input, misspelt."""
    for name in others:
        if near := did_you_mean(name, missing):
            return f"the {kind} '{name}' is no input of the model: {near}"
    return ""


def count_hint(name: str, expected: int, given: int) -> str:
    """Say how many elements an input has and needs."""
    elements = "element" if expected == 1 else "elements"
    return f"input '{name}' needs {expected} {elements} by its shape, its data has {given}"


def strange_input(name: str, model: str, inputs: Mapping[str, TensorSpec]) -> InferError:
    """Return the error for an input that a model does not have."""
    return invalid_arg(
        hinted(f"unexpected inference input '{name}' for model '{model}'", names_hint(name, inputs))
    )
