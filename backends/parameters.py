"""Typed reading of the `parameters` of a configuration, which are all strings."""

from pathlib import Path

from app.core.errors import invalid_arg
from app.core.files.paths import path_inside
from backends.base import Model


def integer(model: Model, key: str, default: int = 0) -> int:
    """Return an integer, or `default` when the parameter is absent or empty.

    Raises:
        InferError: INVALID_ARG when it is no integer.
    """
    value = model.parameter(key)
    try:
        return int(value) if value else default
    except ValueError:
        raise invalid_arg(
            f"parameter '{key}' of model '{model.name}': failed to convert '{value}' to integral number"
        ) from None


def positive(model: Model, key: str, default: int) -> int:
    """Return an integer above 0, or `default`."""
    value = integer(model, key)
    return value if value > 0 else default


def boolean(model: Model, key: str, default: bool = False) -> bool:
    """Return a boolean, or `default` when the parameter is absent or empty.

    Raises:
        InferError: INVALID_ARG when it is neither.
    """
    value = model.parameter(key)
    return parse_boolean(key, value) if value else default


def parse_boolean(key: str, value: str) -> bool:
    """Read true, 1, on, false, 0 or off, in any case.

    Raises:
        InferError: INVALID_ARG for anything else.
    """
    lowered = value.lower()
    if lowered in ("1", "true", "on"):
        return True
    if lowered in ("0", "false", "off"):
        return False
    raise invalid_arg(f"parameter '{key}': failed to convert '{value}' to boolean")


def library_path(model: Model, name: str, setting: str) -> Path | None:
    """Return the path of a library that a configuration names; None where it may not be loaded from.

    Args:
        model: in whose directory it may be.
        name: relative to the version's directory, or absolute.
        setting: of the backend: the directory below which libraries for all models are.
    """
    shared = model.backend_config.get(setting)
    found = path_inside(model.directory, name, model.version_text)
    return path_inside(Path(shared), str(model.version_directory / name)) if shared and not found else found
