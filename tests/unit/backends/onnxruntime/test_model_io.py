"""Configurations completed from an ONNX model, which must then match it."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from onnx import TensorProto, helper

from app.core.errors import InferError
from tests.unit.backend_harness import infer
from tests.unit.backends.onnxruntime.test_backend import FLOAT, completed, save, serve


def foldable(folder: Path) -> Path:
    """A model of which ONNX Runtime knows the output's second dimension only once constants are folded."""
    constants = [
        helper.make_node("Constant", [], [name], value_ints=values)
        for name, values in (("a", [1, 1, 16]), ("b", [0, 0, 0]))
    ]
    nodes = [
        *constants,
        helper.make_node("Add", ["a", "b"], ["s"]),
        helper.make_node("Expand", ["I", "s"], ["O"]),
    ]
    return save(folder, nodes, [("I", FLOAT, (1, 16))], [("O", FLOAT, (1, "n", 16))])


@pytest.mark.parametrize("level", [0, -1, 1, 2])
def test_completed_configuration_is_not_refused(level: int, tmp_path: Path) -> None:
    folder = foldable(tmp_path)
    text = completed(f'name: "x" optimization {{ graph {{ level: {level} }} }}', folder)
    (call,) = serve(text, folder)(infer({"I": np.ones((1, 16), np.float32)}))
    assert call.arrays["O"].shape == (1, 1, 16)


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "INT4"])
def test_element_type_that_triton_does_not_have_is_named(tmp_path: Path, kind: str) -> None:
    element = getattr(TensorProto, kind)
    node = helper.make_node("Cast", ["I"], ["O"], to=element)
    folder = save(tmp_path, [node], [("I", FLOAT, ("n", 2))], [("O", element, ("n", 2))], opset=21)
    with pytest.raises(
        InferError, match=f"tensor 'O' of the model has elements of type {kind}, which Triton"
    ):
        completed('name: "x"', folder)


def test_output_dimension_of_any_size_matches_a_number(tmp_path: Path) -> None:
    text = """
        name: "x" input { name: "I" data_type: TYPE_FP32 dims: [1, 16] }
        output { name: "O" data_type: TYPE_FP32 dims: [1, %s, 16] }
    """
    folder = foldable(tmp_path)
    serve(text % -1, folder)
    with pytest.raises(InferError, match="the model configuration specifies 3 dimensions"):
        serve(text % 2, folder)
