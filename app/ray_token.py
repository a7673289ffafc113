"""Ray's token: whoever knows it can run code as this user, over ports that Ray opens on every interface."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_MODE: Final = "RAY_AUTH_MODE"
_ELSEWHERE: Final = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def require_token() -> None:
    """Have Ray ask for its token, in a file that only this user can read; before Ray is imported.

    Ray writes `~/.ray/auth_token` for everybody to read. A cluster that runs already has a token of its own.
    """
    if os.environ.setdefault(_MODE, "token") != "token" or any(name in os.environ for name in _ELSEWHERE):
        return
    path = Path.home() / ".ray" / "auth_token"
    with suppress(OSError):  # Ray will say what is wrong
        if not path.exists() and "RAY_ADDRESS" not in os.environ:
            _write(path, secrets.token_hex(32))
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)


def _write(path: Path, token: str) -> None:
    """Make the file whole at once; of two servers that start, one does."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w") as file:
        file.write(token)
    try:
        os.link(draft, path)
    finally:
        os.unlink(draft)
