"""Libraries with a framework's operations of their own: `model_operations` of a configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.core.errors import invalid_arg
from backends.base import Model
from backends.parameters import library_path

_EXTENSIONS: Final = "extension-directory"


def operation_libraries(model: Model, backend: str) -> Iterator[Path]:
    """Yield the libraries that `op_library_filename` names, relative to the version's directory.

    A configuration may come from a client, and a library is code: it must lie in the model's directory, or
    below `--backend-config=<backend>,extension-directory=DIRECTORY`.

    Raises:
        InferError: INVALID_ARG for a library elsewhere.
    """
    for name in model.config.model_operations.op_library_filename:
        path = library_path(model, name, _EXTENSIONS)
        if path is None:
            raise invalid_arg(
                f"'op_library_filename' of model '{model.name}' names '{name}', outside the"
                f" model's directory: --backend-config={backend},{_EXTENSIONS}=DIRECTORY"
                " allows libraries below another"
            )
        yield path
