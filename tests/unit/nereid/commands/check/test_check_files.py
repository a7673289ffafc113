"""`nereid check` says of files and configurations what a server says."""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from app.settings.load import from_args
from nereid.commands.check.command import check
from tests.unit.backends.cpp.conftest import libraries  # noqa: F401
from tests.unit.backends.fil.test_reading import CHECKPOINT
from tests.unit.backends.openvino import networks
from tests.unit.nereid.commands.check.test_check import IO, MODEL, STEP, add
from tests.unit.nereid.engine.test_loads_at_once import exported, scripted

Write = Callable[[Path], object]
FIL = """
input { name: "input__0" data_type: TYPE_FP32 dims: 2 }
output { name: "output__0" data_type: TYPE_FP32 dims: 1 }
parameters { key: "model_type" value { string_value: "treelite_checkpoint" } }
max_batch_size: 8 backend: "fil"
"""
TORCH = IO.replace("INPUT0", "INPUT__0").replace("OUTPUT0", "OUTPUT__0").replace("[ 4 ]", "[ -1, 2 ]")
OPENVINO = 'backend: "openvino"'
ENVIRONMENT = 'backend: "python" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }' + IO


class Harm:
    """A pickle of it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def judged(repository: Path, name: str = "m", **flags: object) -> tuple[str, str]:
    """Return why a model fails, and its warnings."""
    found = {each.model: each for each in check(from_args({"model_repository": [str(repository)], **flags}))}
    return found[name].reason, " ".join(found[name].warnings)


def make(repository: Path, config: str, write: Write = lambda folder: None) -> Path:
    """Write a model, whose version directory is given to `write`."""
    add(repository, "m", config)
    write(repository / "m" / "1")
    return repository


def cut(write: Callable[[Path, int], str], name: str, size: int) -> Write:
    """Return what writes the beginning of a file."""

    def write_part(folder: Path) -> None:
        write(folder, 1)
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * size // 100])

    return write_part


def content(name: str, data: bytes) -> Write:
    return lambda folder: (folder / name).write_bytes(data)


def package(folder: Path) -> None:
    """Write an archive like AOTInductor's, for another machine."""
    with zipfile.ZipFile(folder / "model.pt2", "w") as archive:
        archive.writestr("m/data/aotinductor/model/model.so", b"")
        archive.writestr("m/data/aotinductor/model/model_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')


def network(name: str, change: Callable[[bytes], bytes]) -> Write:
    def write(folder: Path) -> None:
        networks.sums(folder.parent)
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return write


def language_model(architecture: str) -> Write:
    def write(folder: Path) -> None:
        (folder / "model.json").write_text("{}")
        (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        (folder / "model.safetensors").write_bytes(bytes(8) + b"{}")

    return write


BAD: dict[str, tuple[str, Write, str]] = {
    "truncated program": (
        'backend: "pytorch"' + TORCH,
        cut(exported, "model.pt2", 50),
        "is damaged or truncated",
    ),
    "truncated TorchScript": (
        'backend: "pytorch"' + TORCH,
        cut(scripted, "model.pt", 50),
        "damaged or truncated",
    ),
    "truncated package": (
        'platform: "torch_aoti"' + TORCH,
        cut(exported, "model.pt2", 90),
        "damaged or truncated",
    ),
    "package without its library": ('platform: "torch_aoti"' + TORCH, package, "failed to load model 'm'"),
    "damaged forest": (
        FIL,
        content("checkpoint.tl", CHECKPOINT[:-20]),
        "it is truncated: 20 bytes are missing",
    ),
    "no forest": (FIL, content("checkpoint.tl", bytes(100)), "cannot be read as treelite_checkpoint"),
    "damaged network": (
        OPENVINO,
        network("model.xml", lambda text: text[:900]),
        "openvino error in reading model",
    ),
    "truncated constants": (
        OPENVINO,
        network("model.bin", lambda data: data[:1]),
        "openvino error in reading model",
    ),
    "no library": (
        'backend: "m"' + IO,
        content("libtriton_m.so", b"\x7fELF\x02\x01"),
        "is damaged or truncated",
    ),
    "text for a library": ('backend: "m"' + IO, content("libtriton_m.so", b"text"), "invalid ELF header"),
    "classifier": (
        'backend: "llm"',
        language_model("BertForSequenceClassification"),
        "does not generate text",
    ),
    "damaged weights": (
        'backend: "llm"',
        language_model("LlamaForCausalLM"),
        "model.safetensors' is damaged",
    ),
    "environment": (
        ENVIRONMENT % "/nowhere/env",
        content("model.py", MODEL.encode()),
        "Failed to get the canonical",
    ),
    "names of identity": ('backend: "identity"' + IO.replace("OUTPUT0", "OUT"), content("x", b""), "OUT"),
    "checksum": (
        'backend: "identity" model_repository_agents { agents {'
        ' name: "checksum" parameters { key: "MD5:1/x" value: "00" } } }' + IO,
        content("x", b""),
        "Mismatched MD5 hash for file 1/x, expect: 00",
    ),
    "warm-up": (
        'backend: "identity" model_warmup { name: "w" batch_size: 1 }' + IO,
        content("x", b""),
        "expected 1 inputs but got 0 inputs for model 'm'",
    ),
    "warm-up of Python": (
        'backend: "python" model_warmup { name: "w" batch_size: 1 }' + IO,
        content("model.py", MODEL.encode()),
        "expected 1 inputs but got 0 inputs for model 'm'",
    ),
    "paddle": (
        'backend: "paddle" max_batch_size: 1',
        content("model.pdmodel", b"x"),
        "must declare its inputs",
    ),
    "empty paddle": ('backend: "paddle"' + IO, content("model.pdmodel", b""), "model.pdmodel' is empty"),
    "tvm": ('backend: "tvm"', content("model.so", b"x"), "must declare its inputs"),
}


@pytest.fixture(autouse=True)
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environments of packaged backends: files that stand for their interpreters."""
    for name in ("llm", "paddle", "tvm"):
        python = tmp_path / "environments" / name / "bin" / "python3"
        python.parent.mkdir(parents=True)
        shutil.copy("/bin/true", python)
    return tmp_path / "environments"


@pytest.mark.parametrize("case", BAD)
def test_what_a_server_refuses_fails(tmp_path: Path, packaged: Path, case: str) -> None:
    config, write, text = BAD[case]
    environments = [f"{name},environment={packaged / name}" for name in ("llm", "paddle", "tvm")]
    reason, _ = judged(make(tmp_path / "models", config, write), backend_config=environments)
    assert text in reason


def test_a_good_program_passes(tmp_path: Path) -> None:
    assert judged(make(tmp_path, 'backend: "pytorch"' + TORCH, lambda folder: exported(folder, 1)))[0] == ""


def test_packaged_backend_that_is_not_installed_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "none"))
    repository = make(tmp_path / "models", 'backend: "paddle"' + IO, content("model.pdmodel", b"x"))
    assert "'nereid backends install paddle' installs it" in judged(repository)[0]
    assert judged(repository, backend_config=["paddle,requirements=install"])[0] == ""


@pytest.mark.parametrize("runtime", ["", 'runtime: "model.py"'])
def test_pickles_are_refused_and_not_executed(tmp_path: Path, runtime: str) -> None:
    def write(folder: Path) -> None:
        if runtime:
            (folder / "model.py").write_text("import torch\n")
            torch.save({"weight": Harm(tmp_path / "made")}, folder / "model.pt")
        else:
            (folder / "model.pt").write_bytes(pickle.dumps(Harm(tmp_path / "made")))

    reason, _ = judged(make(tmp_path / "models", f'backend: "pytorch" {runtime}' + TORCH, write))
    assert "pickle" in reason and "weights_only" not in reason and "skl2onnx" not in reason
    assert not (tmp_path / "made").exists()


def test_library_without_its_libraries_fails(tmp_path: Path, libraries: Path) -> None:  # noqa: F811
    library = libraries / "probe" / "libtriton_probe.so"
    config = 'backend: "probe"' + IO
    repository = make(tmp_path, config, lambda folder: shutil.copy(library, folder))
    assert judged(repository)[0] == ""
    damaged = library.read_bytes().replace(b"libc.so.6\0", b"libq.so.6\0")
    (repository / "m" / "1" / library.name).write_bytes(damaged)
    assert "it needs libq.so.6, which cannot be loaded" in judged(repository)[0]
    other = library.read_bytes().replace(b"ModelInstanceExecute\0", b"ModelInstanceForget_\0")
    (repository / "m" / "1" / library.name).write_bytes(other)
    assert "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute'" in judged(repository)[0]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (STEP % "e", "circular dependency between ensembles: e -> ... -> e -> e"),
        (
            STEP.replace('key: "OUTPUT0"', 'key: "NONE"') % "m",
            "ensemble tensor 'OUTPUT0' is mapping from output NONE",
        ),
    ],
)
def test_ensembles_are_resolved(tmp_path: Path, step: str, text: str) -> None:
    make(tmp_path, 'backend: "identity"' + IO)
    add(tmp_path, "e", 'platform: "ensemble"' + IO + step)
    assert text.split("'")[0] in judged(tmp_path, "e")[0]


def test_types_of_an_ensemble_are_compared(tmp_path: Path) -> None:
    make(tmp_path, 'backend: "identity"' + IO)
    add(tmp_path, "e", 'platform: "ensemble"' + IO.replace("FP32", "INT32") + STEP % "m")
    text = (
        "inconsistent data type: TYPE_INT32 is inferred from model e while TYPE_FP32 is inferred from model m"
    )
    assert text in judged(tmp_path, "e")[0]


def test_model_whose_tensors_only_its_load_tells_does_not_fail_an_ensemble(tmp_path: Path) -> None:
    make(tmp_path, 'backend: "python"', content("model.py", MODEL.encode()))
    add(tmp_path, "e", 'platform: "ensemble"' + IO + STEP % "m")
    assert judged(tmp_path, "e")[0] == ""


def test_what_is_served_otherwise_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path, 'backend: "python" instance_group { count: -1 }' + IO, content("model.py", MODEL.encode()))
    (tmp_path / "m" / "requirements.txt").write_text("numpy==1.2.3\n")
    reason, warnings = judged(tmp_path)
    assert reason == "" and "'count: -1' of an instance_group is none" in warnings
    assert "for numpy==1.2.3; --backend-config=python,requirements=install gives" in warnings
    assert judged(tmp_path, backend_config=["python,requirements=install"])[1].count(" is none") == 1
