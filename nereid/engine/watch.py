"""Loads models again when their files change, and tells what has become of each."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from deployments.model_store.fingerprint import files_of as files_below
from nereid.engine.engine import Engine
from nereid.engine.repository import Applied

POLL_S: Final = 0.25
"""Time between looks at the files; a change is applied when it was found twice as it is."""

Files = Mapping[str, tuple[int, int]]
"""Modification time (ns) and size by path below a model's directory."""


class Change(NamedTuple):
    """What has become of a model whose files were saved.

    Attributes:
        applied: the load or unload.
        files: what was written, added or removed, by paths below the model's directory.
        served: whether a version of it is served now.
    """

    applied: Applied
    files: Sequence[str]
    served: bool


class Watch:
    """Follows the repositories of an engine.

    Args:
        engine: it loads and unloads.
        tell: called with each change.
    """

    def __init__(self, engine: Engine, tell: Callable[[Change], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._files = {name: files_of(path) for name, path in self._directories().items()}

    def run(self, stop: threading.Event, every_s: float = POLL_S) -> None:
        """Follow until `stop` is set."""
        while not stop.wait(every_s):
            self.look()

    def look(self) -> None:
        """Apply what has changed, and is as it was at the look before."""
        for applied in self._engine.plane.call(self._engine.repository.poll()):
            directory = self._directories().get(applied.name)
            files = files_of(directory) if directory is not None else {}
            before, self._files[applied.name] = self._files.get(applied.name, {}), files
            served = any(
                state == "READY" for name, _, state, _ in self._engine.index() if name == applied.name
            )
            self._tell(Change(applied, changed(before, files), served))

    def _directories(self) -> dict[str, Path]:
        on_disk = self._engine.repository.catalog.scan()
        return {name: entry.directory for name, entry in on_disk.items()}


def files_of(directory: Path) -> Files:
    """Return the files of a model."""
    return {path: (modified_ns, size) for path, modified_ns, size in files_below(directory)}


def changed(before: Files, after: Files) -> list[str]:
    """Return the paths that differ, sorted."""
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
