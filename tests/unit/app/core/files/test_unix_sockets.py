"""Sockets in directories of this user's own."""

import fcntl
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.files.unix_sockets import listen_unix


def gone_pid() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def leave(path: Path) -> None:
    """Leave a socket behind as a process does that is killed."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A private one, with a short path: a socket's may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="nereid-test-") as path:
        private = Path(path, "private")
        private.mkdir(mode=0o700)
        yield private


def test_sockets_of_dead_processes_are_removed(directory: Path) -> None:
    gone, outside = gone_pid(), directory.parent / "outside.sock"
    leave(outside)
    for name in (gone, f"ingress-{gone}", "limiter-12ec02cbeb86ac4f", os.getpid()):
        leave(directory / f"{name}.sock")
    (directory / f"file-{gone}.sock").write_text("")
    (directory / f"link-{gone}.sock").symlink_to(outside)
    living = listen_unix(str(directory / f"elsewhere-{gone}.sock"))  # as by a process of another container
    new = listen_unix(str(directory / "new.sock"))
    assert {entry.name for entry in directory.iterdir()} == {
        "limiter-12ec02cbeb86ac4f.sock",
        f"{os.getpid()}.sock",
        f"file-{gone}.sock",
        f"link-{gone}.sock",
        f"elsewhere-{gone}.sock",
        "new.sock",
    }
    assert outside.exists()
    living.close()
    new.close()


def test_socket_that_does_not_listen_yet_is_not_removed(directory: Path) -> None:
    path = directory / f"{gone_pid()}.sock"
    holder = os.open(directory, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)  # whoever makes a socket has it until that listens
    with socket.socket(socket.AF_UNIX) as sock, ThreadPoolExecutor(1) as other:
        sock.bind(str(path))
        listening = other.submit(listen_unix, str(directory / "new.sock"))
        sock.listen()
        os.close(holder)
        listening.result().close()
        assert path.exists()
