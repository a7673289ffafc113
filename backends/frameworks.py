"""Requirements of the built-in backends: a framework beside the server, or an environment of their own.

Processes of other environments import this module, but not the package's own, which finds backends.
"""

from pathlib import Path
from typing import Final

_PACKAGED_FOLDER: Final = Path(__file__).parent / "packaged"
PACKAGED: Final = {name: _PACKAGED_FOLDER / name / "model.py" for name in ("dali", "llm", "paddle", "tvm")}
"""Backends with an environment of their own: the file whose `TritonPythonModel` executes their models."""

FRAMEWORKS: Final[dict[str, tuple[dict[str, str], str]]] = {
    "onnxruntime": ({"onnxruntime": "ONNX Runtime"}, "onnxruntime"),
    "pytorch": ({"torch": "PyTorch"}, "pytorch"),
    "tensorflow": ({"tensorflow": "TensorFlow"}, "tensorflow"),
    "tensorrt": ({"tensorrt": "TensorRT", "torch": "PyTorch"}, "gpu"),
    "fil": ({"treelite": "treelite"}, "fil"),
    "openvino": ({"openvino": "OpenVINO"}, "openvino"),
    "rtsp": ({"av": "PyAV"}, "video"),
    "bytetrack": ({"lap": "lap"}, "video"),
}
"""Built-in backend: (module it needs: title of that module in errors), and the extra that installs it."""


def extra_of(name: str) -> str:
    """Return the extra that installs the framework of a built-in backend; "" for one that needs none."""
    return FRAMEWORKS[name][1] if name in FRAMEWORKS else ""
