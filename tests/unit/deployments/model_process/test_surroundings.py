"""What the process of a Python model is told of the server's surroundings."""

import os
from pathlib import Path
from typing import Any

import pytest

from deployments.model_process import fork_server, start
from deployments.replica.replica import Place


def test_variables_and_the_folder_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = list[bytes]()
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    monkeypatch.setenv("ODD", os.fsdecode(b"\xff"))
    monkeypatch.setenv("RAY_ODD", "1")

    def ask(request: bytes, *_: Any) -> Any:
        asked.append(request)

    monkeypatch.setattr(start, "_ask", ask)
    place = Place("n", str(tmp_path), "127.0.0.1")
    start.start_process("m \ud83d", start.Start(b"", place, "unix:/h", 1, 0), 0, "/")
    directory, _, environment, name, told = fork_server._decode(asked[0])
    assert directory == folder and environment[b"ODD"] == b"\xff" and b"RAY_ODD" not in environment
    assert isinstance(name, str) and isinstance(told, bytes)
