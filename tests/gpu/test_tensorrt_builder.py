"""Engines that are built from ONNX files on a real GPU."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.registry.configuration import normalise
from backends.registry.loading import find_backend
from backends.registry.place import BackendPlace

pytest.importorskip("tensorrt")
onnx = pytest.importorskip("onnx")

from backends.base import Model  # noqa: E402
from tests.unit.backend_harness import Served, config, infer  # noqa: E402

STRATEGY = (
    'parameters { key: "execution_context_allocation_strategy" value { string_value: "ON_PROFILE_CHANGE" } }'
)
HALF = 'parameters { key: "precision_mode" value { string_value: "FP16" } }'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model Y = X + X; engines are kept below the test's folder."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    kind = onnx.TensorProto.FLOAT
    tensors = [onnx.helper.make_tensor_value_info(name, kind, ["rows", 16]) for name in ("X", "Y")]
    node = onnx.helper.make_node("Add", ["X", "X"], ["Y"])
    graph = onnx.helper.make_graph([node], "doubled", tensors[:1], tensors[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "1").mkdir()
    onnx.save(model, str(tmp_path / "1" / "model.onnx"))
    return tmp_path


def serve(folder: Path, text: str = "") -> Served:
    backend = find_backend(BackendPlace("tensorrt"))
    head = 'name: "m" backend: "tensorrt" default_model_filename: "model.onnx" max_batch_size: 8'
    declared = normalise(config(f"{head} {text}"), (0,))
    complete = normalise(backend.auto_complete(Model(declared, 1, folder)), (0,))
    return Served(backend, complete, folder, kind="GPU")


@pytest.mark.parametrize("text", ["", HALF, STRATEGY])
def test_engine_is_built_and_executes(text: str, folder: Path) -> None:
    served = serve(folder, text)
    assert [list(tensor.dims) for tensor in served.model.config.input] == [[16]]
    for count in (1, 8, 3):
        array: Any = np.arange(16 * count, dtype=np.float32).reshape(count, 16)
        (call,) = served(infer({"X": array}))
        assert (call.arrays["Y"] == 2 * array).all()


def test_engine_is_built_once(folder: Path) -> None:
    serve(folder)
    (plan,) = folder.glob("nereid-*/engines/*.plan")
    assert list(folder.glob("nereid-*/engines/*.timing"))
    built = plan.stat().st_ino
    serve(folder)
    assert plan.stat().st_ino == built
