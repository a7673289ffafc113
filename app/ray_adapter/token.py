"""Ray's authentication token: with it a client runs code as this user, on ports open on every interface."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE: Final = "RAY_AUTH_MODE"
_OTHER_SOURCES: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OTHER_USERS: Final = stat.S_IRWXG | stat.S_IRWXO


def require_token() -> None:
    """Switch token authentication on and keep the token file private; call it before Ray is imported.

    Ray 2.60 writes `~/.ray/auth_token` readable by every user. An existing cluster (RAY_ADDRESS) has a token
    already, so none is made for it.
    """
    if os.environ.setdefault(_MODE, "token") != "token" or any(name in os.environ for name in _OTHER_SOURCES):
        return
    path = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # Ray reports what is wrong with the file
        if not path.exists() and "RAY_ADDRESS" not in os.environ:
            _write(path, secrets.token_hex(32))
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHER_USERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHER_USERS)


def _write(path: Path, token: str) -> None:
    """Create the file with its content in one step; of two servers that start at once, one creates it."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(token)
    try:
        os.link(draft, path)
    finally:
        os.unlink(draft)
