"""See `backends.packaged.inspection`."""

from backends.base import Model
from backends.packaged.inspection import require_file


def inspect(model: Model) -> None:
    """Check the files of a model.

    Raises:
        InferError: it cannot be served.
    """
    require_file(model, "model.dali", "dali.py")
