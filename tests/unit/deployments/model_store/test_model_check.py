"""What is said about files that no backend here reads, before a replica is started for them."""

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from app.core.errors import ErrorCode, InferError
from backends.registry.configuration import normalise, validate
from deployments.model_store.layout import ModelEntry
from deployments.model_store.model_check import check_model, found_for, versions_of
from deployments.model_store.model_files import read_config
from tests.unit.deployments.model_store.repository_files import entry_of, refusal


class Net(torch.nn.Module):
    """The model that people bring."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def bytes_of(content: bytes) -> Callable[[Path], None]:
    def write_content(path: Path) -> None:
        path.write_bytes(content)

    return write_content


def keras(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")


def exported(path: Path) -> None:
    """With the names that `torch.export.save` writes (of PyTorch 2.13), which itself takes seconds."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("models/model.json", "data/sample_inputs/model.pt", "archive_format", "archive_version"):
            archive.writestr(f"model/{name}", "")


def state_dict(path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2).state_dict(), path)


def old_state_dict(path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)


def many_tensors(path: Path) -> None:
    """As TorchScript of a large model, whose constants come behind its tensors."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", *(f"data/{number}" for number in range(5000)), "constants.pkl"):
            archive.writestr(f"model/{name}", "")


def saved_model(path: Path) -> None:
    path.mkdir()
    (path / "saved_model.pb").touch()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
SAFE = json.dumps({"w": {}}).encode()
SAFETENSORS = struct.pack("<Q", len(SAFE)) + SAFE
PICKLE = pickle.dumps({"model": 1})

UNSERVED = [
    ("model.pkl", bytes_of(PICKLE), "a pickle", "skl2onnx.to_onnx"),
    ("model.joblib", bytes_of(b"\x78\x9c"), "a pickle", "'zipmap': False"),
    ("model.sav", bytes_of(PICKLE), "a pickle", "Python model"),
    ("model.h5", bytes_of(b"\x89HDF\r\n\x1a\n"), "a Keras model", "tf2onnx"),
    ("model.keras", keras, "a Keras model", "tf2onnx"),
    ("model.tflite", bytes_of(b"\x1c\0\0\0TFL3"), "TensorFlow Lite", "backend 'openvino' serves"),
    ("model.gguf", bytes_of(b"GGUF\3"), "llama.cpp", "llama-cpp-python"),
    ("model.safetensors", bytes_of(SAFETENSORS), "safetensors", "torch.export.save"),
    ("model.engine", bytes_of(b"ftrt"), "a TensorRT engine", "model.plan"),
    ("model.trt", bytes_of(b"ftrt"), "a TensorRT engine", "[gpu]"),
    ("model.json", bytes_of(b'{"learner":{}}'), "an XGBoost model", "xgboost.json"),
    ("model.ubj", bytes_of(b"{L" + bytes(7) + b"\x07learner"), "an XGBoost model", "xgboost.ubj"),
    ("model.txt", bytes_of(b"tree\nversion=v4\n"), "a LightGBM model", "backend 'fil' serves"),
    ("model.cbm", bytes_of(b"CBM1"), "a CatBoost model", "format='onnx'"),
    ("model.mlmodel", bytes_of(b"\x08\x01"), "a Core ML model", "Export ONNX"),
    ("model.pdmodel", bytes_of(b"\x08\x01"), "a Paddle model", "backend 'openvino' serves"),
    ("model.pth", state_dict, "a state_dict", "torch.export.save"),
    ("model.ckpt", bytes_of(POINTER), "a pointer of Git LFS", "git lfs pull"),
    ("model.mar", bytes_of(b"PK"), "a TorchServe archive", "Unpack"),
    ("model.pmml", bytes_of(b"<PMML"), "a PMML model", "pypmml"),
]


def write(repository: Path, name: str, make: Callable[[Path], None], config: str = "") -> ModelEntry:
    version = repository / "m" / "1"
    version.mkdir(parents=True)
    make(version / name)
    if config:
        (repository / "m" / "config.pbtxt").write_text(config)
    return entry_of(repository)


def fault(entry: ModelEntry, backends: Path | None = None, remote: bool = False) -> InferError:
    with pytest.raises(InferError) as caught:
        check(entry, backends, remote)
    return caught.value


def check(entry: ModelEntry, backends: Path | None = None, remote: bool = False) -> None:
    check_model(entry, normalise(read_config(entry)), 1, backends, remote)


def test_library_beside_a_model_is_its_backend(tmp_path: Path) -> None:
    entry = write(tmp_path, "libtriton_x.so", bytes_of(b"\x7fELF"), 'backend: "x"')
    check(entry)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "y"')
    error = fault(entry)
    assert "'libtriton_x.so' is a C++ backend, written for Triton. Name it in config.pbtxt" in error.message


def test_library_that_runtime_names_must_be_there(tmp_path: Path) -> None:
    entry = write(tmp_path, "libtriton_x.so", bytes_of(b""), 'backend: "y" runtime: "libtriton_x.so"')
    check(entry)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime" runtime: "libtriton_z.so"')
    assert fault(entry, tmp_path / "b").message == (
        f"unable to find backend library 'libtriton_z.so' for model 'm', searched: '{tmp_path}/m/1' "
        f"'{tmp_path}/m' '{tmp_path}/b/onnxruntime' "
    )
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "y" runtime: "../m/1/libtriton_x.so"')
    assert fault(entry).message.endswith("is called libtriton_<name>.so, without folders")


def test_library_that_runtime_names_must_not_be_elsewhere(tmp_path: Path) -> None:
    entry = write(
        tmp_path, "libtriton_x.so", bytes_of(b""), 'backend: "y" runtime: "../../other/libtriton_y.so"'
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "libtriton_y.so").touch()
    assert fault(entry).message == (
        "backend library name '../../other/libtriton_y.so' escapes backend directory "
        f"'{tmp_path}/m/1', for model 'm', check model config runtime field"
    )


def test_platform_that_is_not_the_files_is_refused(tmp_path: Path) -> None:
    """Triton infers the backend from the name of the file, whatever the platform."""
    text = 'platform: "onnxruntim" default_model_filename: "model.onnx"'
    entry = write(tmp_path, "model.onnx", bytes_of(b""), text)
    config = normalise(read_config(entry))
    assert config.backend == "onnxruntime"
    with pytest.raises(InferError) as caught:
        validate(config)
    assert caught.value.message == "unexpected 'platform' and 'backend' pair, got:onnxruntim, onnxruntime"


@pytest.mark.parametrize(("name", "make", "what", "advice"), UNSERVED)
def test_file_of_another_framework_is_named_with_a_way(
    tmp_path: Path, name: str, make: Callable[[Path], None], what: str, advice: str
) -> None:
    error = fault(write(tmp_path, name, make))
    assert error.message.startswith("unable to find backend library for backend ")
    assert f"'{name}' is " in error.message and what in error.message and advice in error.message
    assert "Backends here: " in error.message and "onnxruntime" in error.message


@pytest.mark.parametrize(
    ("name", "what", "backend"),
    [
        ("dali.py", "a DALI pipeline", "dali"),
        ("preprocess.dali", "a DALI pipeline", "dali"),
        ("compiled.so", "a model that Apache TVM has compiled", "tvm"),
    ],
)
def test_file_of_a_packaged_backend_is_named_with_its_command(
    tmp_path: Path, name: str, what: str, backend: str
) -> None:
    error = fault(write(tmp_path, name, bytes_of(b"\x08\x01")))
    assert error.message.startswith("Invalid model name: Could not determine backend for model 'm'")
    command = f"(to install it: nereid backends install {backend})"
    assert what in error.message and f"which the backend '{backend}' serves {command}" in error.message


@pytest.mark.parametrize("place", ["", "weights/"])
@pytest.mark.parametrize(
    ("architecture", "advice"),
    [
        ("LlamaForCausalLM", "serves (to install it: nereid backends install llm)"),
        ("BertForSequenceClassification", "does not generate text, such as a classifier"),
    ],
)
def test_model_of_transformers_is_told_from_others(
    tmp_path: Path, place: str, architecture: str, advice: str
) -> None:
    folder = tmp_path / "m" / "1" / place
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(SAFETENSORS)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert advice in fault(entry_of(tmp_path)).message


FOREIGN = [
    ("pytorch", "model.pt", state_dict, "saved by torch.save"),
    ("pytorch", "model.pt", old_state_dict, "saved by torch.save"),
    ("pytorch", "model.pt", bytes_of(PICKLE), "a pickle"),
    ("pytorch", "model.pt", bytes_of(POINTER), "git lfs pull"),
    ("pytorch", "model.pt", bytes_of(SAFETENSORS), "a safetensors file"),
    ("pytorch", "model.pt", bytes_of(b""), "is empty"),
    ("onnxruntime", "model.onnx", bytes_of(POINTER), "git lfs pull"),
    ("onnxruntime", "model.onnx", bytes_of(b"<?xml"), "which the backend 'openvino' serves"),
    ("openvino", "model.xml", bytes_of(POINTER), "git lfs pull"),
    ("openvino", "model.xml", state_dict, "saved by torch.save"),
    ("onnxruntime", "model.onnx", bytes_of(b"<!DOCTYPE html>"), "a web page"),
    ("onnxruntime", "model.onnx", bytes_of(b"\n <HTML lang='en'>"), "a web page"),
    ("onnxruntime", "model.onnx", state_dict, "saved by torch.save"),
]


@pytest.mark.parametrize(("backend", "name", "make", "what"), FOREIGN)
def test_content_that_is_foreign_to_the_backend_is_named(
    tmp_path: Path, backend: str, name: str, make: Callable[[Path], None], what: str
) -> None:
    error = fault(write(tmp_path, name, make))
    assert error.code is ErrorCode.INVALID_ARG
    assert error.message.startswith(f"backend '{backend}' cannot load '{tmp_path.resolve()}/m/1/{name}'. ")
    assert what in error.message


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("model.pt", lambda path: torch.jit.save(torch.jit.script(Net()), path)),
        ("model.pt", many_tensors),
        ("model.pt", exported),
        ("model.pt2", exported),
        ("model.onnx", bytes_of(b"\x08\x0a\x12\x07pytorch")),
        ("model.savedmodel", saved_model),
        ("model.graphdef", bytes_of(b"\n\x0f\n\x01x\x12\x0bPlaceholder")),
        ("model.py", bytes_of(b"")),
        ("model.square", bytes_of(b"")),
    ],
)
def test_servable_file_passes(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    check(write(tmp_path, name, make))


def test_name_of_a_file_alone_refuses_nothing(tmp_path: Path) -> None:
    config = 'backend: "onnxruntime" default_model_filename: "net.pb"'
    check(write(tmp_path, "net.pb", bytes_of(b"\x08\x0a"), config))


def test_stand_in_of_a_remote_file_passes(tmp_path: Path) -> None:
    check(write(tmp_path, "model.onnx", bytes_of(b"")), remote=True)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            'backend: "onnxrutime"',
            "backend 'onnxrutime', try specifying runtime on the model configuration. ",
        ),
        ('backend: "onnxrutime"', "Did you mean 'onnxruntime'?"),
        ('backend: "torch"', "Did you mean 'pytorch'?"),
        ('backend: "tf"', "Did you mean 'tensorflow'?"),
        ('backend: "tf"', "'model.savedmodel/' is a TensorFlow SavedModel. Name its directory model"),
        ('backend: "tf"', ", which the backend 'tensorflow' serves (to install it: "),
        ('platform: "onnxruntime_onx"', "unexpected platform type 'onnxruntime_onx' for m. Did you mean"),
    ],
)
def test_misspelt_name_is_corrected(tmp_path: Path, config: str, text: str) -> None:
    assert text in fault(write(tmp_path, "model.savedmodel", saved_model, config)).message


def test_backend_of_the_backend_directory_is_known(tmp_path: Path) -> None:
    (tmp_path / "backends" / "mine").mkdir(parents=True)
    (tmp_path / "backends" / "mine" / "backend.py").touch()
    entry = write(tmp_path / "models", "weights", bytes_of(b""), 'backend: "mine"')
    check(entry, tmp_path / "backends")
    (tmp_path / "models" / "m" / "config.pbtxt").write_text('backend: "mind"')
    assert "Did you mean 'mine'?" in fault(entry, tmp_path / "backends").message


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (
            "onnxruntime",
            "unable to find '{}/m/1/model.onnx' for model instance 'm'. Found in '{}/m/1': 'net.onnx'.",
        ),
        ("python", "Python model file not found in '{}/m/1/model.py'. Found in '{}/m/1': 'net.onnx'."),
    ],
)
def test_missing_file_is_told_with_what_is_there(tmp_path: Path, backend: str, text: str) -> None:
    error = fault(write(tmp_path, "net.onnx", bytes_of(b"\x08"), f'backend: "{backend}"'))
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message.startswith(text.replace("{}", str(tmp_path.resolve())))
    assert "'default_model_filename' in m/config.pbtxt" in error.message


@pytest.mark.parametrize("config", ['backend: "python"', ""])
def test_a_repository_is_no_model(tmp_path: Path, config: str) -> None:
    for name in ("bert", "resnet"):
        (tmp_path / "m" / name / "1").mkdir(parents=True)
    if config:
        (tmp_path / "m" / "config.pbtxt").write_text(config)
    text = f"'{tmp_path}/m' is a directory of models (bert, resnet): name it as the repository."
    assert versions_of(entry_of(tmp_path)) == text
    assert config or refusal(entry_of(tmp_path)).message.endswith(text)


def test_directory_that_is_no_version_is_told(tmp_path: Path) -> None:
    (tmp_path / "m" / "v1").mkdir(parents=True)
    (tmp_path / "m" / "model.onnx").touch()
    entry = entry_of(tmp_path)
    text = refusal(entry).message
    assert (
        f"No version directory is in '{tmp_path.resolve()}/m': the model's files belong into 'm/1/'" in text
    )
    assert f"Found in '{tmp_path.resolve()}/m': 'model.onnx', 'v1/'." in text
    assert "'model.onnx' is an ONNX model. Name it model.onnx" in text


def test_backend_that_cannot_be_told_is_explained_by_the_files(tmp_path: Path) -> None:
    entry = write(tmp_path, "resnet.onnx", bytes_of(b"\x08"))
    text = refusal(entry).message
    assert text.startswith("Invalid model name: Could not determine backend for model 'm' ")
    assert "'resnet.onnx' is an ONNX model. Name it model.onnx" in text


def test_listing_of_many_files_is_cut(tmp_path: Path) -> None:
    entry = write(tmp_path, "0", bytes_of(b""))
    for number in range(1, 20):
        (tmp_path / "m" / "1" / str(number)).touch()
    assert found_for(entry).endswith(" and 12 more.")
