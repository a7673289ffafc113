"""Files that outlive cluster and machine: values by kind and model, a directory for each repository."""

import fcntl
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from app.core.files.private_files import private_directory, state_directory
from app.core.whole_files import write_whole

logger = logging.getLogger(__name__)

OWN_S = 10.0
"""How long a start waits for the server before it, whose processes may still end."""
_LOOK_S: Final = 0.2
MAX_FILES: Final = 8192
"""Files of a repository: those that were written first are removed first."""
MAX_REPOSITORIES: Final = 1024
_LOCK: Final = "lock"


class StateFiles:
    """Values by kind and model. A repository's directory is one process's until that ends. All methods block.

    Args:
        root: where the directories are.
        place: returns the repository of a model: its path or address, the same after each mount.
    """

    def __init__(self, root: Path, place: Callable[[str], str]) -> None:
        self._root = root
        self._place = place
        self._locks: dict[Path, int] = {}
        self._taking = threading.Lock()

    def write(self, kind: str, name: str, value: bytes) -> None:
        """Set the value of a model; after a crash of the machine, it is this one or the one before.

        Raises:
            OSError: it cannot be written, or another server has the directory.
        """
        directory = self._directory(self._place(name))
        private_directory(directory)
        if not self._owns(directory):
            raise OSError(f"another server of this repository uses '{directory}': give one --state-directory")
        path = directory / f"{blake2b(name.encode(), digest_size=16).hexdigest()}.{kind}.json"
        new = not path.exists()
        write_whole(path, value, durable=True)
        if new:
            _bound(directory)

    def read(
        self, kind: str, repositories: Iterable[str], patient: bool = True
    ) -> Iterator[tuple[bytes, bool]]:
        """Yield the values of one kind, and whether no other server has them too.

        Args:
            kind: see `write`.
            repositories: those whose models are meant.
            patient: wait for a server that ends.
        """
        for directory in map(self._directory, repositories):
            paths = sorted(directory.glob(f"*.{kind}.json"))
            owned = bool(paths) and self._owns(directory, OWN_S if patient else 0.0)
            for path in paths:
                with suppress(OSError):
                    yield path.read_bytes(), owned

    def close(self) -> None:
        """Leave the directories to others."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()

    def _directory(self, repository: str) -> Path:
        return self._root / blake2b(os.fsencode(repository), digest_size=16).hexdigest()

    def _owns(self, directory: Path, wait_s: float = 0.0) -> bool:
        until = time.monotonic() + wait_s
        try:
            while not self._takes(directory):
                if time.monotonic() >= until:
                    return False
                time.sleep(_LOOK_S)
        except OSError:  # it may only be read
            return False
        return True

    def _takes(self, directory: Path) -> bool:
        with self._taking:  # threads of this process are no other servers
            if directory in self._locks:
                return True
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(directory / _LOCK, flags, 0o600)
            if not _locked(descriptor):
                os.close(descriptor)
                return False
            self._locks[directory] = descriptor
            return True


def opened(given: str, place: Callable[[str], str]) -> StateFiles | None:
    """Return the files of this user's servers; None, and a line in the log, where they have no place.

    Args:
        given: the setting of their directory.
        place: see `StateFiles`.
    """
    try:
        root = Path(state_directory("rollouts", given))
        _forget_oldest(root)
        return StateFiles(root, place)
    except OSError as error:
        logger.error("rollouts and rejected versions are forgotten at the next start: %s", error)
        return None


def _forget_oldest(root: Path) -> None:
    """Remove what is kept of the repositories that have not changed for longest, if there are many."""
    folders = [each for each in root.iterdir() if each.is_dir()]
    if len(folders) > MAX_REPOSITORIES:
        for folder in sorted(folders, key=lambda each: each.stat().st_mtime)[:-MAX_REPOSITORIES]:
            shutil.rmtree(folder, ignore_errors=True)


def _locked(descriptor: int) -> bool:
    """Lock a file, which ends with the process; return whether that succeeded, or there are no locks here."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems
        pass
    return True


def _bound(directory: Path) -> None:
    paths = list(directory.glob("*.json"))
    if len(paths) > MAX_FILES:
        for path in sorted(paths, key=lambda path: path.stat().st_mtime)[:-MAX_FILES]:
            path.unlink(missing_ok=True)
