"""Files of a server: nobody else may read or write them, or put others in their place."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import write_model
from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

MAX_SOCKET_PATH = 107


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The server's directory for temporary files: shared as /tmp is, with a short path."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as path:
        Path(path).chmod(0o1777)
        yield Path(path)


def reachable(directory: Path) -> Iterator[Path]:
    """Every path below a directory that other users get to."""
    for path in directory.iterdir():
        yield path
        if path.is_dir() and not path.is_symlink() and path.stat().st_mode & 0o011:
            yield from reachable(path)


def is_open(path: Path) -> bool:
    """Whether other users may read a file, or write or replace anything there."""
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        return bool(mode & 0o022) and not mode & stat.S_ISVTX
    return not stat.S_ISLNK(mode) and bool(mode & 0o077)


def test_files_of_a_server_are_closed_to_other_users(temporary: Path, tmp_path: Path) -> None:
    write_model(tmp_path / "repository", "good")
    arguments = [f"--model-repository={tmp_path / 'repository'}"]
    server = Server(arguments, tmp_path / "log", {"TMPDIR": str(temporary)}).start()
    try:
        made = list(temporary.rglob("*"))
        assert [path for path in reachable(temporary) if is_open(path)] == []
        assert [path for path in made if not path.is_dir() and is_open(path)] == [], "not even inside"
        sockets = [str(path) for path in made if path.is_socket()]
    finally:
        status = server.stop()
    assert any(path.endswith("/sockets/raylet") for path in sockets)
    assert max(map(len, sockets)) <= MAX_SOCKET_PATH
    assert status == 0
