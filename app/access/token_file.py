"""The file of tokens on disk, which its owner alone may read."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from app.access.tokens import Token, parse
from app.core.whole_files import write_whole


def read_tokens(path: str) -> tuple[Token, ...]:
    """Read the tokens of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is broken, or others than its owner may read or write it.
    """
    with open(path, encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        _check_private(status, for_group=os.geteuid() != 0)
        return parse(file.read())


def _check_private(status: os.stat_result, for_group: bool) -> None:
    """Check that a file is its owner's alone.

    With `for_group` the group of a file that is root's may read it: so Kubernetes mounts a secret for a user
    who is not root.
    """
    if status.st_mode & (0o037 if status.st_uid == 0 and for_group else 0o077):
        raise ValueError("others than its owner may use it: chmod 600 it")


def change_tokens(path: str, change: Callable[[str], str]) -> bool:
    """Replace the text of a file; a file that does not exist yet is made, for its owner alone.

    A file keeps its owner, its group and its mode: a server that can no longer read it goes on with the
    tokens that it had, a revoked one among them.

    Returns:
        Whether the file was made.

    Raises:
        OSError: it cannot be read or written.
        ValueError: of `change`, or the file is one that servers refuse, or would become so; it is as before.
    """
    path = os.path.realpath(path)  # a link stays one
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        # Of the folder, because the file is replaced: a server never reads half of it.
        fcntl.flock(folder, fcntl.LOCK_EX)
        status = os.stat(path) if os.path.exists(path) else None
        if status is not None:
            _check_private(status, for_group=True)
        text = Path(path).read_text(encoding="utf-8") if status is not None else ""
        give = None if status is None else lambda file: _give(file, status)
        write_whole(Path(path), change(text).encode(), give, durable=True)
        return status is None
    finally:
        os.close(folder)


def _give(file: int, status: os.stat_result) -> None:
    """Give a new file the owner, the group and the mode of the one that it takes the place of.

    Raises:
        ValueError: only its owner or root may do that.
    """
    made = os.fstat(file)
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(file, status.st_uid, status.st_gid)
        except OSError as error:
            if made.st_uid != status.st_uid or status.st_mode & 0o070:
                raise ValueError(
                    f"it belongs to user {status.st_uid} and group {status.st_gid}: run this as that user or "
                    "as root"
                ) from error
    os.fchmod(file, stat.S_IMODE(status.st_mode))
