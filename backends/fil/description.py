"""What the server knows of the backend `fil`."""

from typing import Final

from backends.description import BackendDescription
from backends.fil.formats import file_name

BACKENDS: Final = (
    BackendDescription(
        name="fil",
        backend="backend:FilBackend",
        hosted=True,
        model_file=file_name,
        uses_gpus=False,
        modules={"treelite": "treelite"},
        extra="fil",
        aliases=("xgboost", "lightgbm", "treelite"),
        kinds=("lightgbm", "xgboost", "treelite"),
    ),
)
