"""Engines that were built on this node, and what TensorRT learned of the speed of layers doing so.

A build takes minutes, and is only valid for a version of TensorRT and a kind of GPU.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.core.files.private_files import private_directory, private_root
from app.core.whole_files import write_whole

_PLAN: Final = ".plan"


class EngineCache:
    """Plans by key in a directory that is private to this user; the least recently used go first.

    Args:
        max_bytes: of all plans; one alone may be larger.
        root: the directory.
    """

    def __init__(self, max_bytes: int, root: Path | None = None) -> None:
        self._max_bytes = max_bytes
        self._root = root or private_root() / "engines"
        private_directory(self._root)

    def get(self, key: str, machine: str, build: Callable[[Path], bytes]) -> Path:
        """Return the plan of a key, built if it is not there; one build for a kind of GPU at a time.

        Args:
            key: of the plan.
            machine: a file name for the kind of GPU: builds beside each other would measure each other.
            build: returns the plan; given the file of the timings that further builds use.
        """
        path = self._root / f"{key}{_PLAN}"
        with self._locked(machine):
            if path.exists():
                os.utime(path)
                return path
            plan = build(self._root / f"{machine}.timing")
            self._make_room(len(plan))
            write_whole(path, plan)
        return path

    @contextmanager
    def _locked(self, machine: str) -> Iterator[None]:
        with (self._root / f"{machine}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, size: int) -> None:
        plans = sorted(self._root.glob(f"*{_PLAN}"), key=lambda path: path.stat().st_mtime_ns)
        sizes = {path: path.stat().st_size for path in plans}
        for path in plans:
            if sum(sizes.values()) + size <= self._max_bytes:
                return
            path.unlink(missing_ok=True)
            del sizes[path]
