"""Files of candidates: valid graphs, layers that stay as they are, what is refused by name."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from nereid.optimise.trials import build
from tests.unit.nereid.optimise.networks import classifier

ROWS = [{"x": np.random.default_rng(n).normal(size=(1, 3, 8, 8)).astype(np.float32)} for n in range(8)]


def built(path: Path, opset: int = 17, **arguments: int) -> onnx.ModelProto:
    classifier(path / "model.onnx", opset)
    build.int8(path / "model.onnx", path / "int8.onnx", ROWS, arguments)
    return onnx.load(path / "int8.onnx")


def quantised(model: onnx.ModelProto) -> int:
    """Return how many convolutions read weights that were in 8 bits."""
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    return sum(
        node.op_type == "Conv" and made.get(node.input[1]) == "DequantizeLinear" for node in model.graph.node
    )


def test_every_layer_is_quantised_by_channel(tmp_path: Path) -> None:
    model = built(tmp_path, kept=0)
    assert quantised(model) == 6
    sizes = {each.name: list(each.dims) for each in model.graph.initializer}
    scaled = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    scales = [sizes[node.input[1]] for node in scaled if node.input[0] in sizes]
    assert [8] in scales
    assert not list(tmp_path.glob("*.before.onnx"))


def test_first_convolutions_and_the_last_matrix_stay(tmp_path: Path) -> None:
    assert quantised(built(tmp_path, kept=4)) == 2
    model = build.named(onnx.load(tmp_path / "model.onnx"))
    left = build.left_alone(model, 4)
    assert len(left) == 5 and left[-1].startswith("MatMul")
    assert build.left_alone(model, 0) == []


def test_an_old_opset_is_converted_first(tmp_path: Path) -> None:
    model = built(tmp_path, opset=11, kept=0)
    assert max(each.version for each in model.opset_import if not each.domain) >= 13


def test_the_invalid_graph_of_an_old_opset_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_PER_CHANNEL", 11)  # as the tool alone would do it
    with pytest.raises(
        build.Refused, match="invalid graph: Unrecognized attribute: axis for operator Dequantize"
    ):
        built(tmp_path, opset=11, kept=0)


def test_dynamic_quantises_matrices(tmp_path: Path) -> None:
    classifier(tmp_path / "model.onnx")
    build.dynamic(tmp_path / "model.onnx", tmp_path / "dynamic.onnx", ROWS, {})
    operators = [node.op_type for node in onnx.load(tmp_path / "dynamic.onnx").graph.node]
    assert "MatMulInteger" in operators and operators.count("Conv") == 6


def test_calibration_is_bounded_by_bytes() -> None:
    rows = [(str(number), dict(each)) for number, each in enumerate(ROWS)]
    assert len(build.calibration(iter(rows), 2 * ROWS[0]["x"].nbytes)) == 2
    assert len(build.calibration(iter(rows), 1)) == 1
