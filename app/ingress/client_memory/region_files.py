"""The regions of memory that clients have registered on a node, as files: one small file for each.

Every ingress replica of the node shares the directory, since all of them listen on the same port. It outlives
an ingress that is restarted, and asks nobody: no call to the repository manager, no table to wait for.

- A file is linked into place whole: of two registrations of one name, one fails.
- Whoever has a request under way that uses the region holds a shared lock on its file. Unregistering takes
  the exclusive lock and removes the file; where it cannot, it clears the file's write bit, and the last user
  removes it, or, should that one have died, whoever asks next. Until then the region is there, as in Triton.
- A lock counts only on a file that is still linked: the name may have been registered anew since it was
  opened.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from app.core.errors import ErrorCode, InferError, not_found, unavailable

MAX_REGIONS: Final = 4096
_MAX_KEPT: Final = 64
"""Descriptors that stay open between requests: to open the file again costs ten times a lock."""


class Region(msgspec.Struct, frozen=True):
    """A registered region: of the file /dev/shm/`key` with that inode, or of a CUDA allocation."""

    name: str
    byte_size: int
    key: str = ""
    offset: int = 0
    inode: int = 0
    handle: bytes = b""
    device_id: int = 0

    @property
    def cuda(self) -> bool:
        """Whether this is GPU memory."""
        return bool(self.handle)


class RegionFiles:
    """The files of the regions of this node; each call takes some microseconds of file system."""

    def __init__(self, directory: str) -> None:
        """Use `directory`, which is made when needed."""
        self._directory = directory
        # Of regions that were used: open, but neither locked nor to be relied on.
        self._kept: dict[str, tuple[Region, int]] = {}

    def add(self, region: Region) -> None:
        """Register a region.

        Raises:
            InferError: ALREADY_EXISTS for a name in use, UNAVAILABLE when there are `MAX_REGIONS`.
        """
        if len(self._paths()) >= MAX_REGIONS:
            raise unavailable(f"there are {MAX_REGIONS} shared memory regions already")
        path = self._path(region.name)
        draft = f"{path}.{os.getpid()}"
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(msgspec.msgpack.encode(region))
        try:
            os.link(draft, path)
        except FileExistsError:
            raise in_manager(region.name) from None
        finally:
            os.unlink(draft)

    def regions(self, name: str = "") -> Iterator[Region]:
        """The regions of this name, or all; those that nobody uses any more are removed on the way."""
        for path in [self._path(name)] if name else self._paths():
            descriptor = _open(path)
            if descriptor is None:
                continue
            region, leaving = _decode(descriptor), _is_leaving(descriptor)
            os.close(descriptor)
            if not leaving or not _remove_if_unused(path):
                yield region

    def withdraw(self, name: str) -> None:
        """Forget a region once no request uses it."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            os.chmod(path, 0o400)
        _remove_if_unused(path)

    def hold(self, name: str) -> tuple[Region, int]:
        """A region that stays until its descriptor, which has the shared lock, is released.

        Raises:
            InferError: NOT_FOUND for an unknown name.
        """
        kept = self._kept.pop(name, None)
        if kept is not None:
            fcntl.flock(kept[1], fcntl.LOCK_SH)
            status = os.fstat(kept[1])
            if status.st_nlink and status.st_mode & stat.S_IWUSR:
                return kept
            os.close(kept[1])
        return self._hold(name)

    def _hold(self, name: str) -> tuple[Region, int]:
        path = self._path(name)
        unknown = not_found(f"Unable to find shared memory region: '{name}'")
        descriptor = _open(path)
        if descriptor is not None and _is_leaving(descriptor):
            os.close(descriptor)
            descriptor = None if _remove_if_unused(path) else _open(path)
        if descriptor is None:
            raise unknown
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # an exclusive one is held for the time of an unlink only
        if not os.fstat(descriptor).st_nlink:
            os.close(descriptor)
            raise unknown
        return _decode(descriptor), descriptor

    def release(self, region: Region, descriptor: int) -> None:
        """Give back what `hold` gave."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        leaving = _is_leaving(descriptor)
        if not leaving and len(self._kept) < _MAX_KEPT and region.name not in self._kept:
            self._kept[region.name] = region, descriptor
            return
        os.close(descriptor)
        if leaving:
            _remove_if_unused(self._path(region.name))

    def close(self) -> None:
        """Remove the directory, if it is empty."""
        while self._kept:
            os.close(self._kept.popitem()[1][1])
        with suppress(OSError):
            os.rmdir(self._directory)

    def _paths(self) -> Sequence[str]:
        try:
            return [entry.path for entry in os.scandir(self._directory) if "." not in entry.name]
        except FileNotFoundError:  # nothing was ever registered
            return ()

    def _path(self, name: str) -> str:
        # A client chose the name: its digest is a file name whatever it contains.
        return os.path.join(self._directory, hashlib.sha256(name.encode()).hexdigest())


def in_manager(name: str) -> InferError:
    """The error for a name in use."""
    return InferError(ErrorCode.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")


def _remove_if_unused(path: str) -> bool:
    """Remove the file of a region to be unregistered, unless a request uses it; False when one does."""
    descriptor = _open(path)
    if descriptor is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink and _is_leaving(descriptor):
            os.unlink(path)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None


def _decode(descriptor: int) -> Region:
    data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    return msgspec.msgpack.decode(data, type=Region)


def _is_leaving(descriptor: int) -> bool:
    return not os.fstat(descriptor).st_mode & stat.S_IWUSR
