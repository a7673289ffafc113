"""What the server knows of the backend `openvino`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

BACKENDS: Final = (
    BackendDescription(
        name="openvino",
        backend="backend:OpenVinoBackend",
        hosted=True,
        formats=(
            ModelFormat("model.xml", directory=None, missing="unable to find '{path}' for model '{model}'"),
        ),
        order=4,
        uses_gpus=False,
        modules={"openvino": "OpenVINO"},
        extra="openvino",
        aliases=("ov",),
        kinds=("tflite", "openvino", "paddle"),
        thread_parameter="INFERENCE_NUM_THREADS",
    ),
)
