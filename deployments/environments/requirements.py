"""Reads a requirements.txt and the files that it references, to detect changes."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.core.errors import invalid_arg
from app.core.paths import path_inside

_MAX_FILES: Final = 1000
# pip's "Requirements File Format": a backslash joins lines, " #" begins a comment, ${NAME} is a variable of
# the environment, and paths are relative to the file with the reference.
_JOIN: Final = re.compile(r"\\\r?\n")
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OPTIONS: Final = ("-r", "-c", "--requirement", "--constraint")
_WITH_VALUE: Final = re.compile(r"(?:-[rc]|--(?:requirement|constraint)=)(.+)")
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def contents(requirements: Path, folder: Path) -> bytes:
    """Return the file and all files that it references with `-r` and `-c`, each once, in that order.

    Missing files, which pip reports, and URLs are left out.

    Args:
        requirements: the first file.
        folder: the directory that must contain all files.

    Raises:
        InferError: INVALID_ARG for a file outside of `folder`, or for too many files.
    """
    found: dict[Path, bytes] = {}
    waiting = [requirements]
    while waiting:
        path = waiting.pop(0)
        if path in found or not path.is_file():
            continue
        if len(found) == _MAX_FILES:
            raise invalid_arg(f"'{requirements}' names more than {_MAX_FILES} files")
        found[path] = path.read_bytes()
        for name in _referenced(found[path]):
            inside = path_inside(folder, str(path.parent / name))
            if inside is None:
                raise invalid_arg(f"'{path}' names '{name}', which is outside of '{folder}'")
            waiting.append(inside)
    return b"".join(b"%d %b\n" % (len(content), content) for content in found.values())


def _referenced(content: bytes) -> Iterator[str]:
    for line in _JOIN.sub("", content.decode(errors="replace")).splitlines():
        expanded = _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), _COMMENT.sub("", line))
        for value in _values(expanded):
            if not _ADDRESS.match(value):
                yield value


def _values(line: str) -> Iterator[str]:
    try:
        words = iter(shlex.split(line))
    except ValueError:  # an unterminated quote, which pip refuses
        return
    for word in words:
        if word in _OPTIONS:
            yield next(words, "")
        elif (option := _WITH_VALUE.fullmatch(word)) is not None:
            yield option[1]
