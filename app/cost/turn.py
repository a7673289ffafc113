"""Which process of a server measures its node: one, and another one when that has ended."""

import fcntl
import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from app.core.files.private_files import private_root


class Turn:
    """A place that one process of a node has until it ends.

    Args:
        key: the secret of the server.
        directory: of the lock.
    """

    def __init__(self, key: bytes, directory: Path | None = None) -> None:
        name = f"cost-{blake2b(key, digest_size=8).hexdigest()}.lock"
        self._path = (directory or private_root()) / name
        self._descriptor: int | None = None

    def taken(self) -> bool:
        """Return whether this process has the place; take it if nobody has it."""
        if self._descriptor is None:
            with suppress(OSError):
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._descriptor = descriptor
                except OSError:
                    os.close(descriptor)
        return self._descriptor is not None

    def close(self) -> None:
        """Leave the place to others."""
        if self._descriptor is not None:
            with suppress(FileNotFoundError):
                self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
