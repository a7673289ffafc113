"""The registered memory regions of a node: one small file for each.

All ingress replicas of a node listen on the same port and share the directory. It survives the restart of an
ingress, and needs no call to the repository manager.

- A file is linked into place complete: of two registrations of one name, one fails.
- A process with requests in flight that use a region has a shared lock on its file. Unregistering acquires
  the exclusive lock and removes the file. Where it cannot, it clears the file's write bit; then the last user
  removes the file or, if that process died, the next call that looks at it. Until then the region exists, as
  in Triton.
- A lock counts only on a file that is still linked: the name may have been registered again since the file
  was opened.
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
from app.core.files.private_files import private_root

MAX_REGIONS: Final = 4096
_MAX_CACHED: Final = 64
"""Descriptors that stay open between requests: opening a file costs ten times as much as locking it."""


def region_directory(key: bytes) -> str:
    """Return the directory for the regions of a node; each start of a server has its own key."""
    server = hashlib.sha256(b"regions" + key).hexdigest()[:16]
    return os.path.join(private_root(), f"regions-{server}")


class Region(msgspec.Struct, frozen=True):
    """A registered region of the file /dev/shm/`key` with that inode, or of a CUDA allocation.

    `owner` is the token for some models that has registered it, "" for any other client.
    """

    name: str
    byte_size: int
    key: str = ""
    offset: int = 0
    inode: int = 0
    handle: bytes = b""
    device_id: int = 0
    owner: str = ""

    @property
    def cuda(self) -> bool:
        """Whether this is GPU memory."""
        return bool(self.handle)


class RegionFiles:
    """The files of this node's regions; each call costs some microseconds of file system."""

    def __init__(self, directory: str) -> None:
        """Use `directory`; it is created with the first region."""
        self._directory = directory
        # Descriptors of regions used before: without a lock, so their regions may be gone.
        self._cached: dict[str, tuple[Region, int]] = {}

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
            raise already_registered(region.name) from None
        finally:
            os.unlink(draft)

    def regions(self, name: str = "") -> Iterator[Region]:
        """Return the region of this name, or all; remove unregistered ones that are no longer in use."""
        for path in [self._path(name)] if name else self._paths():
            descriptor = _open(path)
            if descriptor is None:
                continue
            region, unregistered = _decode(descriptor), _is_unregistered(descriptor)
            os.close(descriptor)
            if not unregistered or not _remove_if_unused(path):
                yield region

    def unregister(self, name: str) -> None:
        """Remove a region, at once or when its last request in flight ends."""
        path = self._path(name)
        with suppress(FileNotFoundError):
            os.chmod(path, 0o400)
        _remove_if_unused(path)

    def acquire(self, name: str) -> tuple[Region, int]:
        """Return a region and a descriptor with a shared lock: the region exists until `release`.

        Raises:
            InferError: NOT_FOUND for an unknown name.
        """
        cached = self._cached.pop(name, None)
        if cached is not None:
            fcntl.flock(cached[1], fcntl.LOCK_SH)
            status = os.fstat(cached[1])
            if status.st_nlink and status.st_mode & stat.S_IWUSR:
                return cached
            os.close(cached[1])
        return self._acquire(name)

    def _acquire(self, name: str) -> tuple[Region, int]:
        path = self._path(name)
        unknown = not_found(f"Unable to find shared memory region: '{name}'")
        descriptor = _open(path)
        if descriptor is not None and _is_unregistered(descriptor):
            os.close(descriptor)
            descriptor = None if _remove_if_unused(path) else _open(path)
        if descriptor is None:
            raise unknown
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # never waits long: the exclusive lock is for an unlink only
        if not os.fstat(descriptor).st_nlink:
            os.close(descriptor)
            raise unknown
        return _decode(descriptor), descriptor

    def release(self, region: Region, descriptor: int) -> None:
        """Release what `acquire` returned."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        unregistered = _is_unregistered(descriptor)
        if not unregistered and len(self._cached) < _MAX_CACHED and region.name not in self._cached:
            self._cached[region.name] = region, descriptor
            return
        os.close(descriptor)
        if unregistered:
            _remove_if_unused(self._path(region.name))

    def close(self) -> None:
        """Close all descriptors, and remove the directory if it is empty."""
        while self._cached:
            os.close(self._cached.popitem()[1][1])
        with suppress(OSError):
            os.rmdir(self._directory)

    def _paths(self) -> Sequence[str]:
        try:
            return [entry.path for entry in os.scandir(self._directory) if "." not in entry.name]
        except FileNotFoundError:  # no region was ever registered
            return ()

    def _path(self, name: str) -> str:
        # The name is the client's and may contain anything; its digest is a valid file name.
        return os.path.join(self._directory, hashlib.sha256(name.encode()).hexdigest())


def already_registered(name: str) -> InferError:
    """Return the error for a name in use."""
    return InferError(ErrorCode.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")


def _remove_if_unused(path: str) -> bool:
    """Remove the file of an unregistered region; return False when a request uses it."""
    descriptor = _open(path)
    if descriptor is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink and _is_unregistered(descriptor):
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


def _is_unregistered(descriptor: int) -> bool:
    return not os.fstat(descriptor).st_mode & stat.S_IWUSR
