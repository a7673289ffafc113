"""What is looked at of a model's file: its name, its first bytes, the names in it."""

import os
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NamedTuple

from backends.transformers_files import CONFIG, Architecture, read_architecture

HEAD_BYTES: Final = 512
"""How much of a file is looked at."""


class ModelFile(NamedTuple):
    """A file or directory beside the model's configuration, or in a version directory.

    Attributes:
        name: without its directory; that of a directory ends in "/".
        head: its first bytes, at most `HEAD_BYTES`; None when they are not known.
        members: the names in it, if it is a ZIP archive or a directory.
        architecture: what config.json says, in it or beside it, if it has weights of transformers.
    """

    name: str
    head: bytes | None = None
    members: frozenset[str] = frozenset()
    architecture: Architecture | None = None

    def ends(self, *endings: str) -> bool:
        """Return whether the name, without the "/" of a directory, has one of these endings, in any case."""
        return self.name.rstrip("/").lower().endswith(endings)

    def begins(self, *beginnings: bytes) -> bool:
        """Return whether the content begins with one of these."""
        return self.head is not None and self.head.startswith(beginnings)

    def holds(self, *endings: str) -> bool:
        """Return whether a member's path ends with one of these."""
        return any(member.endswith(endings) for member in self.members)


def read_file(path: Path) -> ModelFile:
    """Read what there is to know of a file or directory; one that cannot be read has only its name."""
    try:
        if path.is_dir():
            members = frozenset(os.listdir(path))
            return ModelFile(f"{path.name}/", None, members, _architecture(path, members))
        if not path.is_file():
            return ModelFile(path.name)
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        members = _members(path) if head.startswith(b"PK") else frozenset()
        return ModelFile(path.name, head, members, _architecture(path.parent, (path.name,)))
    except OSError:
        return ModelFile(path.name)


def _architecture(folder: Path, names: Collection[str]) -> Architecture | None:
    """Return what config.json of a folder says; None if none of the names is a file of weights."""
    if not any(name.endswith(".safetensors") for name in names) or not (folder / CONFIG).is_file():
        return None
    try:
        found = read_architecture(str(folder))
    except ValueError:
        return None
    return found if found.names else None


def _members(path: Path) -> frozenset[str]:
    """Return the names in an archive; none of one that is cut off, in which another may lie whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.infolist()
            whole = min((each.header_offset for each in found), default=0) == 0
            return frozenset(each.filename for each in found if whole)
    except (zipfile.BadZipFile, OSError, ValueError):
        return frozenset()


class FileKind(NamedTuple):
    """What a file can be.

    Attributes:
        title: "a pickle", say.
        advice: the shortest way to serve it, as an imperative sentence without full stop.
        matches: whether a file is one.
        name: by which descriptions of backends say that they serve it; "" where none does.
    """

    title: str
    advice: str
    matches: Callable[[ModelFile], bool]
    name: str = ""
