"""EfficientNet-Lite0 by OpenVINO beside its bare infer request, and beside ONNX Runtime on the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as op

from benchmarks.backends import Call, Row, served
from benchmarks.tools import ROOT

ONNX: Final = ROOT / "model_repository" / "efficientnet_lite0_onnx" / "1" / "model.onnx"
CONFIG: Final = """
    name: "m" backend: "{}" max_batch_size: 8 {}
    input {{ name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] }}
    output {{ name: "probabilities" data_type: TYPE_FP32 dims: 1000 }}
"""
SMALL: Final = """
    name: "m" backend: "openvino" max_batch_size: 8
    input { name: "A" data_type: TYPE_FP32 dims: 16 } output { name: "B" data_type: TYPE_FP32 dims: 16 }
    parameters { key: "INFERENCE_NUM_THREADS" value { string_value: "1" } }
"""
ONE_THREAD: Final = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
IN_OPENVINO: Final = 'parameters { key: "INFERENCE_NUM_THREADS" value { string_value: "1" } }'
IN_BFLOAT16: Final = IN_OPENVINO + 'parameters { key: "HINT_BF16" value { string_value: "YES" } }'
IN_ONNXRUNTIME: Final = 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'
ACCELERATED: Final = f"""{IN_ONNXRUNTIME}
    optimization {{ execution_accelerators {{ cpu_execution_accelerator {{ name: "openvino" }} }} }}
"""

Array = np.ndarray[Any, Any]


def rows() -> Iterable[Row]:
    """Return the rows; one thread computes on either side."""
    yield Row("OpenVINO, addition of 16 numbers, 1 row", _small)
    for count in (1, 8):
        name = f"OpenVINO, EfficientNet-Lite0, {count} row{'s'[: count > 1]}"
        yield Row(name, _against(count, "openvino", IN_OPENVINO, _request))
        for title, backend, extra in (
            ("", "openvino", IN_OPENVINO),
            (" in bfloat16", "openvino", IN_BFLOAT16),
            (" as accelerator", "onnxruntime", ACCELERATED),
        ):
            yield Row(f"{name}{title}, beside ONNX Runtime", _against(count, backend, extra, _onnxruntime))


def _against(
    count: int, backend: str, extra: str, other: Callable[[Mapping[str, Array]], Call]
) -> Callable[[Path], tuple[Call, Call]]:
    def make(folder: Path) -> tuple[Call, Call]:
        inputs = {"input": np.random.default_rng(0).standard_normal((count, 3, 224, 224), dtype=np.float32)}
        file = 'default_model_filename: "model.onnx"'
        ours = served(CONFIG.format(backend, file + extra), ONNX.parents[1], inputs)
        return ours, other(inputs)

    return make


def _onnxruntime(inputs: Mapping[str, Array]) -> Call:
    return served(CONFIG.format("onnxruntime", IN_ONNXRUNTIME), ONNX.parents[1], inputs)


def _request(inputs: Mapping[str, Array], file: Path = ONNX) -> Call:
    """Call an infer request as OpenVINO's documentation does, with inputs that are not copied."""
    request = ov.Core().compile_model(file, "CPU", ONE_THREAD).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True)


def _small(folder: Path) -> tuple[Call, Call]:
    value = op.parameter([-1, 16], np.float32, name="A")
    value.output(0).get_tensor().set_names({"A"})
    total = op.add(value, value)
    total.output(0).get_tensor().set_names({"B"})
    (folder / "1").mkdir()
    ov.save_model(ov.Model([total], [value], "m"), folder / "1" / "model.xml")
    inputs = {"A": np.ones((1, 16), np.float32)}
    return served(SMALL, folder, inputs), _request(inputs, folder / "1" / "model.xml")
