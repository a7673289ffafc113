"""The directories of Ray's sessions: each start makes one, with sockets and logs, and Ray removes none."""

import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PATTERN: Final = "session_*_*"
SOCKET: Final = ".sock"
"""The end of the name of a socket beside the sessions."""
_LOCK: Final = "starting.lock"
_KEPT: Final = 1
"""Sessions of ended servers that are kept: the logs of the last one may say why it has ended."""


@contextmanager
def new_session(directory: Path) -> Iterator[None]:
    """Remove the sessions of ended servers; those of others are left alone, and this one meanwhile by them.

    Raises:
        OSError: the directory cannot be used.
    """
    with open(directory / _LOCK, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # another starts, and its session has no raylet yet by which one would know that it lives
        else:
            for session in _ended(directory)[_KEPT:]:
                shutil.rmtree(session, ignore_errors=True)
            for path in directory.glob(f"*{SOCKET}"):
                if not _listens(path):
                    path.unlink(missing_ok=True)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def _ended(directory: Path) -> list[Path]:
    """Return sessions without a raylet, the newest first."""
    found = [path for path in directory.glob(_PATTERN) if path.is_dir() and not path.is_symlink()]
    found = [path for path in found if path.stat().st_uid == os.geteuid() and not _lives(path)]
    return sorted(found, key=lambda path: path.name, reverse=True)


def _lives(session: Path) -> bool:
    """Return whether something listens on the raylet's socket of a session, in whichever container."""
    try:
        sockets = os.open(session / "sockets", os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        return _listens(Path(f"/proc/self/fd/{sockets}/raylet"))  # whose length is limited
    finally:
        os.close(sockets)


def _listens(path: Path) -> bool:
    """Return whether something listens on a unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # its queue is full, say
            return True
    return True
