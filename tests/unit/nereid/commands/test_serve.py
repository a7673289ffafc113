"""`nereid serve`: what is served for a file, a folder, a model and a repository."""

import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from app.settings.load import from_args
from nereid.commands import serve
from nereid.commands.check.command import check
from nereid.commands.new import command as new


class Server:
    """Keeps the command lines that it gets, and what it would say of the models."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = []
        self.verdicts: list[dict[str, str]] = []

    def __call__(self, words: Sequence[str]) -> None:
        repository = words[0].partition("=")[2]
        verdicts = check(from_args({"model_repository": [repository]}))
        self.lines.append(list(words))
        self.verdicts.append({each.model: each.reason for each in verdicts})
        sys.exit(0)

    def run(self, *words: str) -> int:
        try:
            return serve.main(words, self)
        except SystemExit as end:
            return int(end.code or 0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    return Server()


def test_one_file_is_a_model_for_the_time_of_the_server(tmp_path: Path, server: Server) -> None:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "XY"]
    graph = helper.make_graph([helper.make_node("Neg", ["X"], ["Y"])], "g", tensors[:1], tensors[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "any.onnx")
    assert server.run(str(tmp_path / "any.onnx"), "--http-port", "9000", "--log-info=true") == 0
    (words,) = server.lines
    assert words[1:] == ["--http-port", "9000", "--log-info=true"] and server.verdicts == [{"any": ""}]
    assert not Path(words[0].partition("=")[2]).exists(), "it was temporary"
    assert server.run(str(tmp_path / "any.onnx"), "--name=mine") == 0
    assert server.verdicts[1] == {"mine": ""}


def test_folder_with_code_a_model_and_a_repository(tmp_path: Path, server: Server) -> None:
    assert new.main(["a", "--python", f"--repository={tmp_path / 'models'}"]) == 0
    assert server.run(str(tmp_path / "models" / "a" / "1"), "--name", "code") == 0
    assert server.run(str(tmp_path / "models" / "a")) == 0
    assert server.run(str(tmp_path / "models")) == 0
    assert server.verdicts == [{"code": ""}, {"a": ""}, {"a": ""}]
    assert server.lines[2] == [f"--model-repository={tmp_path / 'models'}"]


def test_what_cannot_be_served_is_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.md").write_text("# Notes")
    assert server.run(str(tmp_path / "notes.md")) == 2
    assert server.run(str(tmp_path / "none.onnx")) == 2
    text = capsys.readouterr().err
    assert "nothing is known of a file such as 'notes.md'" in text and "there is no '" in text
