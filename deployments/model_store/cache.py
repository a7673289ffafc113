"""A cache of directories on this node, shared by processes: leased while in use, bounded in bytes.

A lease is a shared lock (`flock`) on the directory, so it ends with its process, however that ends.
Directories without a lease are evicted when space is needed, the least recently leased first.
"""

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Final

from app.core.errors import unavailable
from app.core.files.private_files import private_directory

_FILL_LOCKS: Final = 64
_HIDDEN: Final = "."
_ABANDONED_S: Final = 60.0
"""Age at which a partially filled or removed directory without a lease is taken for a dead process's."""


class Lease:
    """Keeps a directory in the cache until `release`."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    def release(self) -> None:
        """Allow the eviction of the directory. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class NodeCache:
    """Directories by key under `root`, which is private to this user (mode 0700). Every method blocks."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def lease(self, key: str) -> Lease | None:
        """Return a lease of a directory; None when it is not in the cache."""
        path = self._root / key
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if _same(descriptor, path):
                os.utime(path)
                return Lease(path, descriptor)
            os.close(descriptor)  # removed while this process waited for the lock

    def fill(self, key: str, size: int, write: Callable[[Path], None]) -> Lease:
        """Return a lease of a directory, which one process of the node makes by `write` if it is missing.

        Args:
            key: a file name.
            size: the bytes that `write` needs.
            write: fills an empty directory.

        Raises:
            InferError: UNAVAILABLE when leased directories leave no space for `size` bytes.
        """
        private_directory(self._root)
        with self._filling(key):
            lease = self.lease(key)
            if lease is not None:
                return lease
            self._make_room(size)
            part = self._root / f".{uuid.uuid4().hex}"
            part.mkdir(mode=0o700)
            descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                write(part)
                os.rename(part, self._root / key)
            except BaseException:
                os.close(descriptor)
                shutil.rmtree(part, ignore_errors=True)
                raise
            return Lease(self._root / key, descriptor)

    def remove(self, key: str) -> bool:
        """Remove a directory unless it is leased; return whether it is absent now."""
        path = self._root / key
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(descriptor, path):
                doomed = self._root / f".{uuid.uuid4().hex}"
                os.rename(path, doomed)
                shutil.rmtree(doomed, ignore_errors=True)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True

    def listing(self) -> list[str]:
        """Return the keys in the cache, the least recently leased first."""
        return [name for name in self._names() if not name.startswith(_HIDDEN)]

    def _names(self) -> list[str]:
        try:
            with os.scandir(self._root) as found:
                ages = [(item.stat().st_mtime_ns, item.name) for item in found if item.is_dir()]
        except FileNotFoundError:
            return []
        return [name for _, name in sorted(ages)]

    @contextmanager
    def _filling(self, key: str) -> Iterator[None]:
        stripe = blake2b(key.encode(), digest_size=4).digest()[0] % _FILL_LOCKS
        with open(self._root / f".fill-{stripe}", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, size: int) -> None:
        self._sweep()
        sizes = {name: _size(self._root / name) for name in self._names()}
        for name in [n for n in sizes if not n.startswith(_HIDDEN)]:
            if sum(sizes.values()) + size <= self._max_bytes:
                return
            if self.remove(name):
                del sizes[name]
        if sum(sizes.values()) + size > self._max_bytes:
            raise unavailable(
                f"no room for {size} bytes of model files in '{self._root}': "
                f"{sum(sizes.values())} of {self._max_bytes} bytes are in use"
            )

    def _sweep(self) -> None:
        for name in [name for name in self._names() if name.startswith(_HIDDEN)]:
            path = self._root / name
            if path.exists() and time.time() - path.stat().st_mtime > _ABANDONED_S and self.remove(name):
                shutil.rmtree(path, ignore_errors=True)


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _size(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total
