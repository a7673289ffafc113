"""Files that OpenVINO reads: other formats, and files that refer to what is not theirs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from app.core.errors import ErrorCode, InferError
from backends.openvino.backend import OpenVinoBackend
from tests.unit.backend_harness import Served, infer
from tests.unit.backends.openvino import other_formats
from tests.unit.backends.openvino.networks import model, parameters, sums

ONNX = """
    default_model_filename: "model.onnx" max_batch_size: 4
    input { name: "x" data_type: TYPE_FP32 dims: 4 } output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""


def write_onnx(folder: Path, location: str = "") -> Path:
    """Write y = x + W, with W in a file at `location`."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    weights = np.arange(4, dtype=np.float32)
    tensor = onnx.numpy_helper.from_array(weights, "W")
    if location:
        tensor = TensorProto(name="W", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
    (folder / "1" / "weights.bin").write_bytes(weights.tobytes())
    (folder / "secret.bin").write_bytes((weights + 100).tobytes())
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy"]
    node = helper.make_node("Add", ["x", "W"], ["y"])
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:], [tensor])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "1" / "model.onnx").write_bytes(made.SerializeToString())
    return folder


def error_of(folder: Path, text: str = "", **settings: str) -> InferError:
    with pytest.raises(InferError) as caught:
        OpenVinoBackend.auto_complete(model(folder, text, **settings))
    return caught.value


@pytest.mark.parametrize("location", ["", "weights.bin"])
def test_onnx_by_default_model_filename(tmp_path: Path, location: str) -> None:
    served = Served(OpenVinoBackend, model(write_onnx(tmp_path, location), ONNX))
    (call,) = served(infer({"x": np.ones((2, 4), np.float32)}))
    assert call.arrays["y"].tolist() == [[1, 2, 3, 4]] * 2


@pytest.mark.parametrize(
    ("name", "write", "names"),
    [
        ("model.tflite", other_formats.tflite, "xy"),
        ("model.pdmodel", other_formats.paddle, "xy"),
        ("model.savedmodel", other_formats.savedmodel, "xy"),
        ("model.pb", other_formats.graphdef, ("x:0", "y:0")),
    ],
)
def test_files_of_other_frameworks(
    tmp_path: Path, name: str, write: Callable[[Path], None], names: Sequence[str]
) -> None:
    (tmp_path / "1").mkdir()
    write(tmp_path / "1" / name)
    completed = model(tmp_path, f'default_model_filename: "{name}"')
    completed.config.CopyFrom(OpenVinoBackend.auto_complete(completed))
    served = Served(OpenVinoBackend, completed)
    (call,) = served(infer({names[0]: np.array([[-1, 2, -3, 4]], np.float32)}))
    assert call.arrays[names[1]].tolist() == [[0, 2, 0, 4]]


@pytest.mark.parametrize("location", ["../secret.bin", "./x/../../secret.bin", "{}/secret.bin"])
def test_external_data_stays_in_the_models_directory(tmp_path: Path, location: str) -> None:
    error = error_of(write_onnx(tmp_path, location.format(tmp_path)), ONNX)
    assert error.code == ErrorCode.INTERNAL
    assert "is outside the base directory" in error.message


def test_model_file_stays_in_the_models_directory(tmp_path: Path) -> None:
    error = error_of(sums(tmp_path), 'default_model_filename: "../../model.xml"')
    assert error.message == "model file name '../../model.xml' escapes the directory of model 'm'"


def test_document_type_is_refused(tmp_path: Path) -> None:
    path = sums(tmp_path) / "1" / "model.xml"
    head, _, tail = path.read_text().partition("?>")
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    path.write_text(f'{head}?><!DOCTYPE net [<!ENTITY e0 "lol">{entities}]>{tail}')
    error = error_of(tmp_path)
    assert error.code == ErrorCode.INVALID_ARG
    assert error.message == f"'{path}' has a document type declaration, which no OpenVINO model has"


def test_large_xml_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = sums(tmp_path) / "1" / "model.xml"
    size = path.stat().st_size
    error = error_of(tmp_path, max_xml_bytes=str(size - 1))
    assert error.message.startswith(f"'{path}' has {size} bytes, at most {size - 1} are read")
    OpenVinoBackend.auto_complete(model(tmp_path, max_xml_bytes=str(size)))


@pytest.mark.parametrize("text", ["", "<net", "not XML", "<net name='n' version='11'/>", "\0" * 100])
def test_damaged_file_fails_the_load(tmp_path: Path, text: str) -> None:
    (sums(tmp_path) / "1" / "model.xml").write_text(text)
    with pytest.raises(InferError):
        Served(OpenVinoBackend, model(tmp_path, ONNX.replace("model.onnx", "model.xml")))


def test_extension_library_lies_in_the_models_directory(tmp_path: Path) -> None:
    sums(tmp_path / "m")
    other = tmp_path / "other"
    other.mkdir()
    for place in (other, tmp_path / "m" / "1"):
        (place / "operators.so").write_bytes(b"no library")
    outside = parameters(CPU_EXTENSION_PATH=str(other / "operators.so"))
    error = error_of(tmp_path / "m", outside)
    assert (error.code, error.message) == (
        ErrorCode.INVALID_ARG,
        f"the parameter 'CPU_EXTENSION_PATH' of model 'm' names '{other / 'operators.so'}', outside the"
        " model's directory: --backend-config=openvino,extension-directory=DIRECTORY allows libraries below"
        " another",
    )
    refused = "openvino error in loading custom CPU extensions : "
    assert error_of(tmp_path / "m", outside, extension_directory=str(other)).message.startswith(refused)
    inside = parameters(CPU_EXTENSION_PATH="operators.so")
    assert error_of(tmp_path / "m", inside).message.startswith(refused)
