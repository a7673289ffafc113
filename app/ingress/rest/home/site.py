"""The documentation as a site, where the installation has it (release/manual.py builds it)."""

import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

_POLICY: Final = "policy.txt"
_INDEX: Final = "index.html"
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


class File(NamedTuple):
    """A file of the site, and its media type."""

    path: Path
    kind: str


class Site:
    """The files that were there when it was made: a path leads to no others.

    Args:
        directory: has them, or is not there.

    Attributes:
        headers: of each answer.
    """

    def __init__(self, directory: Path) -> None:
        found = (path for path in directory.rglob("*") if path.is_file())
        self._files = {path.relative_to(directory).as_posix(): path for path in found}
        policy = self._files.pop(_POLICY, None)
        told = {"Content-Security-Policy": policy.read_text()} if policy else {}
        self.headers: Mapping[str, str] = _HEADERS | told

    def __bool__(self) -> bool:
        """Return whether there is a site."""
        return _INDEX in self._files

    def find(self, name: str) -> File | None:
        """Return a file by its path below the directory, the first page of a folder by the folder's."""
        name = f"{name}{_INDEX}" if not name or name.endswith("/") else name
        path = self._files.get(name)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return None if path is None else File(path, kind)
