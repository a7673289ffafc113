"""What packaged backends need of a model, checked without their environment: for `nereid check`."""

from app.core.errors import invalid_arg, unavailable
from backends.base import Model


def require_tensors(model: Model) -> None:
    """Refuse a configuration without inputs or outputs, which the backend does not complete.

    Raises:
        InferError: INVALID_ARG.
    """
    if not (model.config.input and model.config.output):
        raise invalid_arg(undeclared(model.name))


def undeclared(name: str) -> str:
    """Return the text for a model that does not declare its tensors."""
    return f"the configuration of model '{name}' must declare its inputs and outputs: they are not completed"


def require_file(model: Model, *names: str) -> None:
    """Refuse a model without the file that its configuration names, else without one of these.

    Raises:
        InferError: UNAVAILABLE for none, INVALID_ARG for an empty one.
    """
    paths = [model.artifact(name) for name in names]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        raise unavailable(f"unable to find '{paths[0]}' for model '{model.name}'")
    if path.is_file() and not path.stat().st_size:
        raise invalid_arg(f"'{path}' is empty")
