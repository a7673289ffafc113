"""Unix sockets in directories that only this user may enter."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from typing import Final

from app.core.files.private_files import private_directory

_MAX_UNIX_PATH: Final = 107
_OF_PROCESS: Final = re.compile(r"(?:[a-z]+-)?(\d{1,10})\.sock|models-[0-9a-f]+\.sock")
"""Names of sockets by the id of the one process that listens on them, and those of models' fork servers."""


def listen_unix(path: str) -> socket.socket:
    """Listen on a socket file of mode 0600 in a directory that only this user may enter.

    The directory is made when it does not exist; a file left behind by a dead process is replaced, and those
    of other dead processes are removed.

    Raises:
        ValueError: the path is too long for a unix socket.
        PermissionError: others may enter the directory.
        OSError: a process listens there, or the file is no socket.
    """
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise ValueError(f"'{path}' is longer than the {_MAX_UNIX_PATH} bytes of a unix socket's path")
    directory = os.path.dirname(path)
    private_directory(directory)
    with _locked(directory):
        _remove_dead(directory)
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(socket.SOMAXCONN)
        except BaseException:
            sock.close()
            raise
    return sock


@contextlib.contextmanager
def _locked(directory: str, flags: int = 0) -> Iterator[None]:
    """Exclude other processes that make or remove sockets there."""
    # A socket that is bound and does not listen yet would look like one left behind by a dead process.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(descriptor)


def remove_dead(directory: str) -> None:
    """Remove the sockets of processes that have ended from a directory, if it is there."""
    with contextlib.suppress(OSError), _locked(directory, fcntl.LOCK_NB):  # who has it removes them, too
        _remove_dead(directory)


def _remove_dead(directory: str) -> None:
    """Remove the sockets of processes that have ended, unless one listens, perhaps in another container."""
    for name in os.listdir(directory):
        match = _OF_PROCESS.fullmatch(name)
        if match is None or (match[1] and os.path.exists(f"/proc/{match[1]}")):
            continue
        with contextlib.suppress(OSError):  # in use, no socket, or removed meanwhile
            _remove_stale(os.path.join(directory, name))


def _remove_stale(path: str) -> None:
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(f"'{path}' exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, f"another process listens on '{path}'")
