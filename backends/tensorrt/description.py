"""What the server knows of the backend `tensorrt`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

BACKENDS: Final = (
    BackendDescription(
        name="tensorrt",
        backend="backend:TensorRtBackend",
        formats=(
            ModelFormat("model.plan", "tensorrt_plan"),
            ModelFormat("model.onnx", "tensorrt_plan", named_only=True),  # an engine is built of it
        ),
        order=2,
        modules={"tensorrt": "TensorRT", "torch": "PyTorch"},
        extra="gpu",
        aliases=("trt",),
        kinds=("tensorrt",),
    ),
)
