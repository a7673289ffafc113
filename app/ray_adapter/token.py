"""Ray's authentication token: with it a client runs code as this user, on ports open on every interface."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from app.core.files.private_files import private_root

_MODE: Final = "RAY_AUTH_MODE"
_OTHER_SOURCES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


def require_token() -> None:
    """Switch token authentication on and keep the token file private; call it before Ray is imported.

    Ray 2.60 writes `~/.ray/auth_token` readable by every user. Where the home directory is not there or may
    not be written to, the file is in the user's private directory. An existing cluster (RAY_ADDRESS) has a
    token already, so none is made for it.

    Raises:
        OSError: the token can be kept nowhere.
    """
    if os.environ.setdefault(_MODE, "token") != "token" or any(name in os.environ for name in _OTHER_SOURCES):
        return
    path = Path.home() / ".ray" / "auth_token"
    if "RAY_ADDRESS" not in os.environ:
        try:
            _require(path)
        except OSError:
            path = private_root() / "auth_token"
            _require(path)
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    with suppress(OSError):  # Ray reports what is wrong with the file
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHER_USERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHER_USERS)


def _require(path: Path) -> None:
    """Make the file if it is not there; fail if it cannot be read.

    It is created with its content in one step; of two servers that start at once, one creates it.
    """
    with suppress(FileNotFoundError):
        path.read_bytes()
        return
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    try:
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
