"""Which sessions of ended servers are removed."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.ray_adapter.local.sessions import new_session

NAMES = [f"session_2026-01-0{day}_00-00-00_000000_1" for day in range(1, 5)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name / "sockets").mkdir(parents=True)
        (tmp_path / name / "logs").mkdir()
    (tmp_path / "session_latest").symlink_to(tmp_path / NAMES[-1])
    return tmp_path


def left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("session_2*"))


@contextmanager
def raylet(session: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(session / "sockets")  # a path of a socket is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("raylet")
        listener.listen(0)
        yield listener


def test_sessions_of_ended_servers_are_removed_but_the_last(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raylet(directory / NAMES[0], monkeypatch):
        pass  # the socket stays behind
    with new_session(directory):
        assert left(directory) == NAMES[-1:]


def test_session_of_a_living_server_is_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raylet(directory / NAMES[0], monkeypatch), new_session(directory):
        assert left(directory) == [NAMES[0], NAMES[-1]]


def test_session_of_a_raylet_that_accepts_nothing_is_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raylet(directory / NAMES[0], monkeypatch), socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect("raylet")  # fills its queue, as with a raylet that is stopped
        with new_session(directory):
            assert NAMES[0] in left(directory)


def test_nothing_is_removed_while_another_server_starts(directory: Path) -> None:
    with new_session(directory):
        (directory / NAMES[0]).mkdir()  # of the start that is under way
        with new_session(directory):
            assert left(directory) == [NAMES[0], NAMES[-1]]
    with new_session(directory):
        assert left(directory) == NAMES[-1:]
