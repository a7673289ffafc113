"""What the server knows of the backend `tvm`, which has an environment of its own."""

from typing import Final

from backends.description import BackendDescription

BACKENDS: Final = (BackendDescription(name="tvm", kinds=("tvm",)),)
