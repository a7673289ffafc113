"""`nereid check`."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nereid.commands.check.command import main
from tests.server import ROOT

IO = """
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] }
"""
MODEL = "class TritonPythonModel:\n    pass\n"
STEP = """
ensemble_scheduling { step { model_name: "%s" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }
"""


def add(repository: Path, name: str, config: str, **files: str | bytes) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    for file, content in files.items():
        path = version / file.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def verdicts(capsys: pytest.CaptureFixture[str], repository: Path, status: int) -> dict[str, str]:
    """The reason of each model, "" for one that passes."""
    assert main(["--json", str(repository)]) == status
    return {each["model"]: each["reason"] for each in json.loads(capsys.readouterr().out)}


def test_example_models_pass(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdicts(capsys, ROOT / "model_repository", 0)
    assert found and set(found.values()) == {""}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """A directory that only a process of another mount namespace has at its path, as that process sees it."""
    (tmp_path / "models").mkdir()
    mount = f"mount -t tmpfs none {tmp_path}/models && echo mounted && exec cat"
    command = ["unshare", "--mount", "sh", "-c", mount]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        mounted = process.stdout.readline()
        if mounted:
            yield Path(f"/proc/{process.pid}/root{tmp_path}/models")
        process.stdin.close()
    if not mounted:
        pytest.skip("no right to mount")


def test_models_of_another_container_by_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    add(elsewhere, "m", 'backend: "python"' + IO, model_py=MODEL)
    assert not list((tmp_path / "models").iterdir())
    (tmp_path / "link").symlink_to(elsewhere)
    assert verdicts(capsys, tmp_path / "link", 0) == {"m": ""}


def test_a_link_to_nowhere_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to("/proc/1/root/nowhere")
    assert main([str(tmp_path / "link")]) == 2
    assert re.fullmatch(
        r"model_repository: directory '.*/link' (does not exist|cannot be opened: Permission denied)\n",
        capsys.readouterr().err,
    )


BAD = [
    ('backend: "pyton"', {"model_py": MODEL}, "Did you mean 'python'?"),
    ('backend: "python"', {"model_py": "class"}, "model.py: SyntaxError: invalid syntax"),
    ('backend: "python"', {"model_py": "x = 1"}, "has no class 'TritonPythonModel'"),
    ('backend: "python"', {}, "Python model file not found in "),
    ("max_batchsize: 4", {}, "Did you mean 'max_batch_size'?"),
    ('backend: "onnxruntime"', {"model_onnx": b"\x08\x0a\x12\x01x"}, "onnx runtime error"),
    ('backend: "identity" max_batch_size: -1', {}, "'max_batch_size' must be non-negative value for m"),
    ('platform: "ensemble"' + STEP % "nothere", {}, "models that are not available or ambiguous: nothere"),
]


@pytest.mark.parametrize(("config", "files", "text"), BAD)
def test_bad_model_fails_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, files: dict[str, str | bytes], text: str
) -> None:
    add(tmp_path, "m", config + IO, **files)
    assert text in verdicts(capsys, tmp_path, 1)["m"]


def test_shapes_are_compared_with_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (ROOT / "model_repository" / "silero_vad" / "1" / "model.onnx").read_bytes()
    add(tmp_path, "m", 'backend: "onnxruntime"' + IO, model_onnx=content)
    assert "configuration expects 1 inputs, model provides 3" in verdicts(capsys, tmp_path, 1)["m"]


def test_missing_label_file_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = IO.replace('"OUTPUT0"', '"OUTPUT0" label_filename: "no.txt"')
    add(tmp_path, "m", 'backend: "identity"' + config)
    assert "no.txt: No such file" in verdicts(capsys, tmp_path, 1)["m"]


def test_ensemble_fails_with_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path, "bad", 'backend: "nonesuch"' + IO)
    add(tmp_path, "good", 'backend: "identity"' + IO)
    add(tmp_path, "one", 'platform: "ensemble"' + IO + STEP % "bad")
    add(tmp_path, "two", 'platform: "ensemble"' + IO + STEP % "good")
    found = verdicts(capsys, tmp_path, 1)
    depends = "Invalid argument: ensemble 'one' depends on 'bad' which has no loaded version."
    failed = (
        "Model 'bad' loading failed with error: version 1 is at UNAVAILABLE state: Invalid argument: unable"
    )
    assert found["one"].startswith(f"{depends} {failed}")
    assert (found["two"], found["good"]) == ("", "")


def test_table_lists_reasons_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(tmp_path, "bad", 'backend: "nonesuch"' + IO)
    add(tmp_path, "good", 'backend: "identity"' + IO)
    assert main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["model  result", "bad    failed", "good   ok"]
    assert lines[4].startswith("bad: Invalid argument: unable to find backend library")
    assert lines[-1] == "1 of 2 models pass"


@pytest.mark.parametrize("path", ["", "no"])
def test_nothing_to_check_is_another_status(
    tmp_path: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / path)]) == 2
    shown = capsys.readouterr()
    assert "no models" in shown.out or "does not exist" in shown.err
