"""What the server knows of the backend `python`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

BACKENDS: Final = (
    BackendDescription(
        name="python",
        backend="backend:PythonBackend",
        takes_library=False,  # Triton's starts processes itself
        formats=(ModelFormat("model.py", directory=None, missing="Python model file not found in '{path}'"),),
        order=6,
        aliases=("py",),
    ),
)
