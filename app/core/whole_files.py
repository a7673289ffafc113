"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(
    path: Path, content: bytes, prepare: Callable[[int], None] | None = None, durable: bool = False
) -> None:
    """Write a file for this user alone: readers see this content, or what was there before.

    Args:
        prepare: is given the descriptor of the new file, to set its owner, its mode or its times.
        durable: after a crash of the machine, too.

    Raises:
        OSError: it cannot be written; what was there before is still there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb", opener=_open_private) as file:
            file.write(content)
            file.flush()
            if prepare is not None:
                prepare(file.fileno())
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if durable:
        _sync(path.parent)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
