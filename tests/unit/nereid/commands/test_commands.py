"""The commands beside the server."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest
import ray

from nereid.commands.table import COMMANDS, Command
from nereid.server import serve_run
from nereid.server.cli import main, usage
from tests.server import ROOT
from tests.unit.client.tape.made import row, write


def test_first_word_chooses_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> int:
        got.append(argv)
        return 4

    module = ModuleType("own_command")
    module.main = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_command", module)
    monkeypatch.setitem(cast(dict[str, Command], COMMANDS), "own", Command("own_command", "Do it."))
    with pytest.raises(SystemExit) as exited:
        main(["own", "--http-port=x", "y"])
    assert exited.value.code == 4 and got == [["--http-port=x", "y"]]
    assert "  own\n\tDo it." in usage()


def test_interrupt_of_a_command_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    module = ModuleType("own_command")
    module.main = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_command", module)
    monkeypatch.setitem(cast(dict[str, Command], COMMANDS), "own", Command("own_command", "Do it."))
    with pytest.raises(SystemExit) as exited:
        main(["own"])
    assert exited.value.code == 130


def test_every_command_can_be_run(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as exited:
            main([name, "--help"])
        assert exited.value.code == 0
        shown = capsys.readouterr().out
        assert f"usage: nereid {name} " in shown
        examples = [line.strip() for line in shown.splitlines() if line.startswith("  nereid ")]
        assert not [line for line in examples if re.search(r"  +[^# ]", line)], "can be run as they are"


@pytest.mark.parametrize(
    "command", ["check model_repository", "tape show TAPE", "tape show TAPE --json", "token list"]
)
def test_command_into_a_closed_pipe_prints_nothing(command: str, tmp_path: Path) -> None:
    write(tmp_path / "tape" / "ab-1.open", [row(number) for number in range(1, 40)])
    (tmp_path / "tokens.jsonl").touch(0o600)
    words = command.replace("TAPE", str(tmp_path / "tape")).split()
    words += ["--file", str(tmp_path / "tokens.jsonl")] if words[0] == "token" else []
    reading, writing = os.pipe()
    os.close(reading)
    command_line = [sys.executable, "-m", "nereid", *words]
    done = subprocess.run(command_line, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT, timeout=100)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_help_of_serve_starts_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    serve_run.main(["--help"])
    shown = capfd.readouterr().out
    assert "nereid-serve serve_config.yaml" in shown and "Usage" in shown.partition("own help")[2]
    assert not ray.is_initialized()


def test_serve_without_its_file_starts_nothing() -> None:
    with pytest.raises(SystemExit, match="for models in it: nereid --model-repository=/"):
        serve_run.main(["--working-dir", "/tmp", "/"])
    with pytest.raises(SystemExit, match=r"there is no file 'nofile\.yaml'"):
        serve_run.main(["nofile.yaml"])
    assert not ray.is_initialized()
