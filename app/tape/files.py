"""The files of a tape on one node: `DIR/<node>/<ingress>-<number>.open`, `.tape` once they are sealed.

A writer holds a lock (`flock`) on its open file: without one, its process has ended.
"""

import fcntl
import logging
import os
import platform
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from app.core.files.private_files import private_directory
from nereid_client.tape.records import MAGIC
from nereid_client.tape.rows import TapeError
from nereid_client.tape.segments import OPEN, SEALED, Counted, cut, seal

logger = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
_BUFFERS: Final = 512
"""Buffers of one `writev`; Linux takes 1024."""


def node_directory(directory: str) -> Path:
    """Return the directory of this node's files; it and the tape's are made if necessary.

    Raises:
        OSError: it cannot be made, or others may enter it.
    """
    if not os.path.isdir(directory):
        private_directory(directory)
    node = re.sub(r"[^\w.-]", "_", platform.node()) or "node"
    path = Path(directory, node)
    private_directory(path)
    return path


def read_key(directory: str) -> bytes:
    """Return the key of the hashes of a tape; it is made with the first.

    Raises:
        OSError: it cannot be read or made, or others may read it.
    """
    path = Path(directory, "key")
    if not path.exists():
        made = Path(directory, f".key-{secrets.token_hex(8)}")
        made.touch(mode=0o600)
        with made.open("wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())  # after a loss of power its name would be there and it be empty
        with suppress(FileExistsError):  # another ingress was first
            os.link(made, path)
        made.unlink()
    owner = os.lstat(path)
    if not stat.S_ISREG(owner.st_mode) or owner.st_uid != os.geteuid() or owner.st_mode & 0o077:
        raise PermissionError(f"'{path}' must belong to this user alone (mode 0600)")
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:  # of none, anybody could try out what was hashed
        raise OSError(
            f"'{path}' has {len(key)} bytes, not {_KEY_BYTES}: remove it for a new key, by which "
            "equal values have other hashes than so far"
        )
    return key


class SegmentFile:
    """A segment that is being written.

    Args:
        path: of the file, which must not exist.

    Raises:
        OSError: it cannot be made.

    Attributes:
        path: this path.
        size: its bytes.
        counted: its rows.
        dirty: something was written since the last `sync`.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self.path = path
        self.counted = Counted(models={})
        self._descriptor = os.open(path, flags, 0o600)
        self.size, self.dirty = 0, False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write([MAGIC])
        except BaseException:
            self.close()
            with suppress(OSError):
                path.unlink()
            raise

    def write(self, buffers: list[Any]) -> None:
        """Append whole records, all or nothing.

        Raises:
            OSError: nothing was appended; the file is not used any more if even that is uncertain.
        """
        size = sum(map(len, buffers))
        try:
            self._write(buffers)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += size
        self.dirty = True

    def _write(self, buffers: list[Any]) -> None:
        waiting = [memoryview(each).cast("B") for each in buffers]
        while waiting:
            written = os.writev(self._descriptor, waiting[:_BUFFERS])
            while waiting and written >= len(waiting[0]):
                written -= len(waiting.pop(0))
            if written:
                waiting[0] = waiting[0][written:]

    def sync(self) -> None:
        """Have the disk keep what was written, whatever becomes of the machine.

        Raises:
            OSError: it cannot.
        """
        if self.dirty:
            self.dirty = False
            os.fdatasync(self._descriptor)

    @property
    def is_in_place(self) -> bool:
        """Whether its path still leads to it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except OSError:
            return False

    def seal(self) -> None:
        """End the segment; without rows, remove it.

        Raises:
            OSError: it cannot be written; the next start of a server seals it.
        """
        try:
            if self.counted.rows:
                self.sync()
                seal(self.path, self.counted)
            else:
                self.path.unlink()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file as it is."""
        os.close(self._descriptor)


def recover(directory: Path) -> int:
    """Seal the open segments of processes that have ended; return how many there were.

    Raises:
        OSError: the directory cannot be read.
    """
    found = 0
    for path in directory.glob(f"*{OPEN}"):
        try:
            found += _sealed(path)
        except (OSError, TapeError) as error:
            logger.warning("the tape's file '%s' was left behind and cannot be sealed: %s", path, error)
    return found


def _sealed(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        counted = cut(path)
        if counted.rows:
            seal(path, counted)
        else:
            path.unlink()
        return True
    except BlockingIOError:  # its process lives
        return False
    finally:
        os.close(descriptor)


def retain(directory: Path, max_bytes: int, oldest: float) -> list[Path]:
    """Remove the oldest sealed segments of a node, until the others are few enough; return their paths.

    Args:
        directory: of the node.
        max_bytes: of all segments.
        oldest: seconds since the epoch; what was sealed before goes in any case.

    Raises:
        OSError: the directory cannot be read.
    """
    segments, total = [], 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another ingress has removed or sealed it
                if entry.name.endswith((SEALED, OPEN)):
                    status = entry.stat()
                    total += status.st_size
                    segments.append((status.st_mtime, status.st_size, Path(entry.path)))
    removed = []
    for modified, size, path in sorted(each for each in segments if each[2].suffix == SEALED):
        if total <= max_bytes and modified >= oldest:
            break
        with suppress(FileNotFoundError):
            path.unlink()
            removed.append(path)
        total -= size
    return removed


def is_scarce(directory: Path) -> bool:
    """Return whether less than a tenth of the disk is free, and less than 10 GiB.

    Raises:
        OSError: that cannot be told.
    """
    disk = os.statvfs(directory)
    return disk.f_bavail < disk.f_blocks / 10 and disk.f_bavail * disk.f_frsize < 10 << 30
