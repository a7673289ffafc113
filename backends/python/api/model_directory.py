"""The version directories of the Python models of this process, for `pb_utils.get_model_dir`."""

from contextvars import ContextVar

_loaded: list[str] = []
_own: ContextVar[str] = ContextVar("own", default="")
"""That of the model which the current thread loaded: an instance has a thread of its own."""


def push(directory: str) -> None:
    """Add the directory of a model that was imported."""
    _loaded.append(directory)


def use(directory: str) -> None:
    """Have the current thread use the directory of a model that is imported."""
    _own.set(directory)


def remove(directory: str) -> None:
    """Remove the directory of a model that is unloaded."""
    _loaded.remove(directory)


def current() -> str:
    """Return the directory of the current thread's model, else of the one imported last, absolute.

    It is "" when none is loaded.
    """
    own = _own.get()
    if own in _loaded:
        return own
    return _loaded[-1] if _loaded else ""
