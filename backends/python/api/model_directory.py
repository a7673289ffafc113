"""The version directory of the Python model that this process serves, for `pb_utils.get_model_dir`."""

_loaded: list[str] = []


def push(directory: str) -> None:
    """Add the directory of a model that was imported."""
    _loaded.append(directory)


def remove(directory: str) -> None:
    """Remove the directory of a model that is unloaded."""
    _loaded.remove(directory)


def current() -> str:
    """Return the directory of the model imported last, absolute; "" when none is loaded."""
    return _loaded[-1] if _loaded else ""
