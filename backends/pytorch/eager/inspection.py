"""What the files of an eager model say without running its code: for `nereid check`."""

from app.core.errors import internal
from backends.base import Model
from backends.python.source import parsed


def inspect(model: Model) -> None:
    """Check the module's source, and that its weights are no more than tensors.

    Raises:
        InferError: INVALID_ARG for a file that is no Python, INTERNAL for other weights.
    """
    path = model.artifact("model.py")
    if path.suffix != ".py":
        return
    parsed(path)
    weights = path.with_suffix(".pt")
    if not weights.exists():
        return
    from backends.pytorch.eager.weights import read_weights

    try:
        read_weights(str(weights), "meta")
    except ValueError as error:
        raise internal(str(error)) from error
