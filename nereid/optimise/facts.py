"""What a model's file and this machine are, for the choice of candidates."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from app.core.system.cpus import cpu_flags
from nereid.optimise.trials.candidates import Facts, Machine
from nereid.optimise.trials.forms import Source

_GPU: Final = Path("/dev/nvidia0")
_MODULES: Final = ("nncf", "onnx", "onnxruntime", "openvino", "tensorrt", "torch")


def facts_of(source: Source) -> Facts:
    """Read what a model is; of an ONNX model also its operators, if the package onnx is there."""
    if not source.file.endswith(".onnx") or find_spec("onnx") is None:
        return Facts(source.config.backend, source.file)
    import onnx

    model = onnx.load(source.files / source.file, load_external_data=False)
    sizes = {each.name: _bytes(each) for each in model.graph.initializer}
    weights: Counter[str] = Counter()
    for node in model.graph.node:
        weights[node.op_type] += sum(sizes.get(name, 0) for name in node.input)
    return Facts(
        source.config.backend,
        source.file,
        max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0),
        sum(node.op_type == "Conv" for node in model.graph.node),
        weights["Conv"],
        weights["MatMul"] + weights["Gemm"],
    )


def _bytes(tensor: Any) -> int:
    """Return about how many bytes a tensor has, wherever they are."""
    size = 4
    for each in tensor.dims:
        size *= each
    return size


def machine() -> Machine:
    """Look at this machine."""
    found = frozenset(name for name in _MODULES if find_spec(name) is not None)
    return Machine(cpu_flags(), found, _GPU.exists())
