"""What the server knows of the backend `onnxruntime`."""

from typing import Final

from backends.description import BackendDescription, ModelFormat

BACKENDS: Final = (
    BackendDescription(
        name="onnxruntime",
        backend="backend:OnnxRuntimeBackend",
        hosted=True,
        # Large models are a directory that holds model.onnx and its weights.
        formats=(ModelFormat("model.onnx", "onnxruntime_onnx", directory=None),),
        order=3,
        instances_on_cpu=2,
        modules={"onnxruntime": "ONNX Runtime"},
        extra="onnxruntime",
        aliases=("onnx", "ort"),
        kinds=("onnx",),
        thread_parameter="intra_op_thread_count",
    ),
)
