"""What the server knows of the backend `dali`, which has an environment of its own."""

from typing import Final

from backends.description import BackendDescription

BACKENDS: Final = (BackendDescription(name="dali", kinds=("dali",)),)
