"""The file of tokens on disk, which its owner alone may read."""

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from app.access.tokens import Token, parse


def read_tokens(path: str) -> tuple[Token, ...]:
    """Read the tokens of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is broken, or others than its owner may read or write it.
    """
    with open(path, encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        if status.st_mode & _forbidden(status.st_uid):
            raise ValueError("others than its owner may use it: chmod 600 it")
        return parse(file.read())


def _forbidden(owner: int) -> int:
    """Return the permissions that a file of an owner must not have.

    The group of a file that is root's may read it: so Kubernetes mounts a secret for a user who is not root.
    """
    return 0o037 if owner == 0 and os.geteuid() != 0 else 0o077


def change_tokens(path: str, change: Callable[[str], str]) -> None:
    """Replace the text of a file; a file that does not exist yet is made, for its owner alone.

    Raises:
        OSError: it cannot be read or written.
        ValueError: of `change`; the file is as before.
    """
    path = os.path.realpath(path)  # a link stays one
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        # Of the folder, because the file is replaced: a server never reads half of it.
        fcntl.flock(folder, fcntl.LOCK_EX)
        text = Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""
        _replace(path, change(text))
    finally:
        os.close(folder)


def _replace(path: str, text: str) -> None:
    number, written = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".tokens-")  # mode 0600
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(number)
        os.replace(written, path)
    except BaseException:
        os.unlink(written)
        raise
