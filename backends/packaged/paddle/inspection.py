"""See `backends.packaged.inspection`."""

from backends.base import Model
from backends.packaged.inspection import require_file, require_tensors


def inspect(model: Model) -> None:
    """Check the configuration and the files of a model.

    Raises:
        InferError: it cannot be served.
    """
    require_tensors(model)
    require_file(model, "model.pdmodel", "model.json")
