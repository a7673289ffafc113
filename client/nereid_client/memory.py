"""Memory that a server on this machine is told of, and in which a pool has its slots."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol

from nereid_client.datatypes import Array, decode
from nereid_client.transport import Transport

_DIRECTORY: Final = Path("/dev/shm")
"""Where Linux keeps POSIX shared memory."""
_PREFIX: Final = "nereid-pool-"


class Memory(Protocol):
    """A region of bytes.

    Attributes:
        name: of the region, at the server too.
        size: its bytes.
    """

    name: str
    size: int

    async def register(self, transport: Transport, timeout: float) -> None:
        """Make the server know the region."""

    async def unregister(self, transport: Transport, timeout: float) -> None:
        """Make the server forget the region."""

    def close(self) -> None:
        """Release the region; views that are left keep their memory."""

    def slot(self, start: int, size: int) -> tuple[object, Any]:
        """Return an object that lives as long as any view of this part, and a view of its bytes."""

    def write(self, view: Any, data: Any) -> None:
        """Copy the bytes of a tensor into a part of a slot's view."""

    def array(self, view: Any, datatype: str, shape: tuple[int, ...]) -> Array:
        """Return the tensor whose bytes are a part of a slot's view, without a copy."""


def region_name() -> str:
    """Return a name that no other region has, and that tells the process."""
    return f"{_PREFIX}{os.getpid()}-{token_hex(8)}"


class HostMemory:
    """POSIX shared memory, which is unlinked when it is closed, and if its process is killed."""

    def __init__(self, size: int) -> None:
        self.name, self.size = region_name(), size
        self._map = _create(self.name, size)

    async def register(self, transport: Transport, timeout: float) -> None:
        await transport.register(self.name, f"/{self.name}", self.size, timeout)

    async def unregister(self, transport: Transport, timeout: float) -> None:
        await transport.unregister(self.name, timeout)

    def close(self) -> None:
        _unlink(self.name)

    def slot(self, start: int, size: int) -> tuple[object, memoryview]:
        # Views of a ctypes object keep it; those of a memoryview keep only what is below.
        slot = (ctypes.c_char * size).from_buffer(self._map, start)
        return slot, memoryview(slot).cast("B")

    def write(self, view: memoryview, data: memoryview) -> None:
        view[:] = data

    def array(self, view: memoryview, datatype: str, shape: tuple[int, ...]) -> Array:
        return decode(view, datatype, shape)


def _create(name: str, size: int) -> mmap.mmap:
    _remove_orphans()
    file = _locked(name)
    try:
        resource_tracker.register(f"/{name}", "shared_memory")
        os.posix_fallocate(file, 0, size)  # fails here, not with a signal when it is written to
        return mmap.mmap(file, size)  # which has a descriptor of its own, and with it the lock
    except BaseException:
        _unlink(name)
        raise
    finally:
        os.close(file)


def _locked(name: str) -> int:
    """Return a new file with a lock that ends with its process, whose number may be anything elsewhere."""
    file = os.open(_DIRECTORY / name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_SH)
    if os.fstat(file).st_nlink:
        return file
    os.close(file)  # another process saw it before it was locked
    return _locked(name)


def _remove_orphans() -> None:
    """Remove regions whose process, and its resource tracker, were killed."""
    for path in _DIRECTORY.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, one in use, or gone by now
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(file)


def _unlink(name: str) -> None:
    (_DIRECTORY / name).unlink(missing_ok=True)
    resource_tracker.unregister(f"/{name}", "shared_memory")
