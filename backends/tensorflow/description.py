"""What the server knows of the backend `tensorflow`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

BACKENDS: Final = (
    BackendDescription(
        name="tensorflow",
        backend="backend:TensorFlowBackend",
        hosted=True,
        formats=(
            ModelFormat("model.savedmodel", "tensorflow_savedmodel", directory=True),
            ModelFormat("model.graphdef", "tensorflow_graphdef"),
        ),
        first_by_default=False,
        order=1,
        instances_on_cpu=2,
        modules={"tensorflow": "TensorFlow"},
        extra="tensorflow",
        aliases=("tf",),
        kinds=("saved_model", "tensorflow_graph"),
        thread_parameter="TF_NUM_INTRA_THREADS",
    ),
)
