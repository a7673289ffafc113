"""What the server says of itself: the version of tritonserver that it stands for, and its extensions."""

from typing import Final

VERSION: Final = "2.73.0"
EXTENSIONS: Final = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
