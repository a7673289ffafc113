"""What the process of a Python model is told of the server's surroundings, and who starts it."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InferError
from deployments.model_process import fork_server, start
from deployments.model_process.run import Run
from deployments.model_process.start_message import Start
from deployments.replica.replica import Place
from deployments.spec import ModelSpec, Placement, ReplicaSettings


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
    start.start_process("m \ud83d", Start(b"", place, "unix:/h", 1, 0), 0, "/")
    directory, _, environment, name, told = fork_server._decode(asked[0])
    assert directory == folder and environment[b"ODD"] == b"\xff" and b"RAY_ODD" not in environment
    assert isinstance(name, str) and isinstance(told, bytes)


def test_servers_of_one_user_have_fork_servers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else models of one would run with the code, the interpreter and the limits of another."""
    asked = list[str]()

    def ask(request: bytes, activity: int, path: str) -> Any:
        asked.append(path)
        raise ConnectionError

    monkeypatch.setattr(start, "_ask", ask)
    monkeypatch.setattr(start, "_TRIES", 1)
    settings = ReplicaSettings(placement=Placement(socket_directory="/sockets"))
    for key in (b"a" * 32, b"b" * 32, b"a" * 32):
        spec = ModelSpec("m", 1, "", b"", "m:1", "", key, settings)
        with pytest.raises(InferError, match="unable to start a process for model 'm'"):
            Run.start(spec, Start(b"", Place("n", "", "127.0.0.1"), "unix:/h", 1, 0), 0)
    one, other, again = asked
    assert one == again != other
    assert os.path.dirname(one) == "/sockets" and b"a" * 8 not in os.fsencode(one)


def test_a_fork_server_that_ends_leaves_no_socket(tmp_path: Path) -> None:
    path = tmp_path / "models.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        bound = fork_server._inode(listener)
        fork_server._retire(listener, bound)
        assert not path.exists()
        fork_server._retire(listener, bound)  # as when what cleans folders was faster
        path.touch()
        fork_server._retire(listener, -1)
        assert path.exists(), "it is of another server"
