"""`nereid new`: the model that is made of each starting point, and the test that comes with it."""

import json
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import joblib
import numpy as np
import onnx
import pytest
import torch
from google.protobuf import text_format
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression
from tritonclient.grpc import model_config_pb2 as mc

from app.settings.load import from_args
from nereid.commands.check.command import check
from nereid.commands.new.command import main
from nereid.commands.new.made_tests import file_of
from nereid.commands.new.starts import from_source, name_for, read_tensor
from nereid.migrate.plan import MigrationError


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[Path, str]]:
    """Return what makes a model `m`, that a server would serve; with its directory and what was printed."""

    def make(*words: str) -> tuple[Path, str]:
        repository = tmp_path / "repository"
        assert main(["m", f"--repository={repository}", *words]) == 0
        assert [each.reason for each in check(from_args({"model_repository": [str(repository)]}))] == [""]
        return repository / "m", capsys.readouterr().out

    return make


def passes(model: Path) -> None:
    """Run the test that was made."""
    path = model / file_of(model.name)
    namespace: dict[str, Any] = {"__file__": str(path)}
    exec(compile(path.read_text(), path, "exec"), namespace)
    namespace["test_answers"]()


def config_of(model: Path) -> mc.ModelConfig:
    return text_format.Parse((model / "config.pbtxt").read_text(), mc.ModelConfig())


def test_python_model_to_begin_with(made: Callable[..., tuple[Path, str]]) -> None:
    model, printed = made("--python")
    assert f"python -m pytest {model}/test_m.py" in printed
    passes(model)


def test_pickle_of_scikit_learn_is_not_read_and_answers(
    made: Callable[..., tuple[Path, str]], tmp_path: Path
) -> None:
    trained = LogisticRegression().fit(np.eye(4), [0, 1, 0, 1])
    joblib.dump(trained, tmp_path / "model.joblib")
    model, printed = made("--from", str(tmp_path / "model.joblib"))
    assert "model.joblib is a pickle, which was not read: loading the model executes it" in printed
    passes(model)


class Hostile:
    """A pickle that makes a directory when it is read."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.place,)


def test_no_pickle_is_executed(made: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(Hostile(tmp_path / "executed")))
    made("--from", str(tmp_path / "model.pkl"))
    assert not (tmp_path / "executed").exists()


class Net(torch.nn.Module):
    """Two inputs, two outputs."""

    def forward(self, x: Any, y: Any) -> Any:
        return x + y, (x > y)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_torchscript_is_told_its_inputs(
    made: Callable[..., tuple[Path, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "any.pt")
    torch.jit.trace(Net().eval(), (torch.ones(1, 3), torch.ones(1, 3))).save(path)  # type: ignore[no-untyped-call]
    assert main(["m", "--from", path]) == 1
    assert "tell it for x, y" in capsys.readouterr().err
    model, _ = made("--from", path, "--input", "x:FP32:3", "--input", "y:FP32:3")
    found = config_of(model)
    assert found.max_batch_size == 8 and [tuple(each.dims) for each in found.output] == [(3,), (3,)]
    assert [each.data_type for each in found.output] == [mc.TYPE_FP32, mc.TYPE_BOOL]
    passes(model)


def test_exported_program_says_it_all(made: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    rows = torch.export.Dim("rows")
    example = torch.ones(2, 3), torch.ones(2, 3)
    program = torch.export.export(Net().eval(), example, dynamic_shapes={"x": {0: rows}, "y": {0: rows}})
    torch.export.save(program, tmp_path / "program.pt2")
    model, _ = made("--from", str(tmp_path / "program.pt2"))
    found = config_of(model)
    assert found.max_batch_size == 8 and [tuple(each.dims) for each in found.input] == [(3,), (3,)]
    passes(model)


def test_onnx_model(made: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "XY"]
    graph = helper.make_graph([helper.make_node("Neg", ["X"], ["Y"])], "g", tensors[:1], tensors[1:])
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made_model, tmp_path / "net.v2.onnx")
    model, _ = made("--from", str(tmp_path / "net.v2.onnx"))
    assert os.path.samefile(model / "1" / "model.onnx", tmp_path / "net.v2.onnx"), "linked"
    passes(model)


def test_folder_with_code(made: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    first, _ = made("--python")
    folder = first / "1"
    found = from_source("copy", folder)
    assert [item.target for item in found.items] == ["1/model.py"] and found.config.backend == "python"
    assert name_for(folder.parent) == "m" and name_for(tmp_path / "a b.v2.onnx") == "a_b"


@pytest.mark.parametrize(
    ("name", "head", "backend", "target"),
    [
        ("m.json", b'{"learner": {}}', "fil", "1/xgboost.json"),
        ("m.ubj", b"{L\0\0\0\0\0\0\0\x07learner", "fil", "1/xgboost.ubj"),
        ("m.bst", b"binf", "fil", "1/xgboost.model"),
        ("m.txt", b"tree\nversion=v4", "fil", "1/model.txt"),
        ("m.tl", b"x", "fil", "1/checkpoint.tl"),
        ("m.plan", b"ftrt", "tensorrt", "1/model.plan"),
        ("m.tflite", b"\0\0\0\0TFL3", "openvino", "1/m.tflite"),
    ],
)
def test_files_are_named_as_their_backends_read_them(
    tmp_path: Path, name: str, head: bytes, backend: str, target: str
) -> None:
    (tmp_path / name).write_bytes(head)
    found = from_source("m", tmp_path / name)
    assert (found.config.backend, [item.target for item in found.items]) == (backend, [target])


def test_openvino_model_has_its_weights(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_text("<?xml version='1.0'?>")
    with pytest.raises(MigrationError, match=r"there is no 'net\.bin'"):
        from_source("m", tmp_path / "net.xml")
    (tmp_path / "net.bin").write_bytes(b"weights")
    with pytest.raises(MigrationError, match="cannot be read"):
        from_source("m", tmp_path / "net.xml")


def test_openvino_model_says_its_dimensions(made: Callable[..., tuple[Path, str]], tmp_path: Path) -> None:
    ov = pytest.importorskip("openvino")
    given = ov.opset13.parameter([-1, 3], np.float32, name="x")
    model = ov.Model([ov.opset13.relu(given)], [given])
    model.outputs[0].set_names({"y"})
    model.inputs[0].set_names({"x"})
    ov.save_model(model, tmp_path / "net.xml")
    folder, _ = made("--from", str(tmp_path / "net.xml"))
    found = config_of(folder)
    assert found.max_batch_size == 8 and [tuple(each.dims) for each in found.input] == [(3,)]
    assert sorted(os.listdir(folder / "1")) == ["model.bin", "model.xml"]
    passes(folder)


def hugging_face(folder: Path, architecture: str) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    return folder


class Pipeline:
    """Labels a text by its length."""

    def __call__(self, values: list[str], top_k: int) -> list[list[dict[str, Any]]]:
        return [[{"label": f"L{len(value)}", "score": 0.5}] for value in values]


def test_classifier_of_transformers_answers_by_a_pipeline(
    made: Callable[..., tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def pipeline(task: str, **options: Any) -> Pipeline:
        asked.append((task, options))
        return Pipeline()

    transformers = ModuleType("transformers")
    transformers.pipeline = pipeline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    folder = hugging_face(tmp_path / "hf", "DistilBertForSequenceClassification")
    model, _ = made("--from", str(folder))
    passes(model)
    ((task, options),) = asked
    assert task == "text-classification" and options["model"] == str(model / "1" / "model")
    assert options["trust_remote_code"] is False and options["truncation"] is True


@pytest.mark.parametrize(
    ("architecture", "backend", "task"),
    [
        ("BertModel", "python", "feature-extraction"),
        ("BertForTokenClassification", "python", "token-classification"),
        ("ViTForImageClassification", "python", "image-classification"),
        ("LlamaForCausalLM", "llm", ""),
    ],
)
def test_folder_of_transformers(tmp_path: Path, architecture: str, backend: str, task: str) -> None:
    found = from_source("m", hugging_face(tmp_path / "hf", architecture))
    assert found.config.backend == backend
    assert found.config.parameters["task"].string_value == task
    assert "1/model/config.json" in [item.target for item in found.items]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("notes.md", b"# Notes", "nothing is known of a file such as 'notes.md'"),
        ("model.h5", b"\x89HDF\r\n", "is a Keras model. Export a SavedModel"),
        ("weights.safetensors", b"\x02\0\0\0\0\0\0\0{}", "has weights but no program"),
    ],
)
def test_what_no_model_is_made_of_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["m", "--from", str(tmp_path / name), f"--repository={tmp_path / 'r'}"]) == 1
    assert says in capsys.readouterr().err and not (tmp_path / "r").exists()


def test_unknown_pipeline_missing_file_and_name_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MigrationError, match=r"'CLIPVisionProjection' of config\.json is of no pipeline"):
        from_source("m", hugging_face(tmp_path / "hf", "CLIPVisionProjection"))
    assert main(["m", "--from", str(tmp_path / "none")]) == 1
    assert main(["../m", "--python", f"--repository={tmp_path / 'r'}"]) == 1
    assert "is no name of a model" in capsys.readouterr().err
    assert main(["m", "--python", f"--repository={tmp_path / 'r'}"]) == 0
    assert main(["m", "--python", f"--repository={tmp_path / 'r'}"]) == 1
    assert "exists already" in capsys.readouterr().err


def test_input_is_read() -> None:
    assert read_tensor("x:fp32:3,224") == ("x", "TYPE_FP32", (3, 224))
    assert read_tensor("x:BYTES:") == ("x", "TYPE_STRING", ())
    for text in ("x:FP32", ":FP32:3", "x:FLOAT:3", "x:FP32:a"):
        with pytest.raises(ValueError):
            read_tensor(text)
