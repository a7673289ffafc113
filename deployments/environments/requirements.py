"""Reads a requirements.txt and the files that it references."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.core.errors import invalid_arg
from app.core.files.paths import path_inside

_MAX_FILES: Final = 1000
# pip's "Requirements File Format": a backslash joins lines, " #" begins a comment, ${NAME} is a variable of
# the environment, and paths are relative to the file with the reference.
_JOIN: Final = re.compile(r"\\\r?\n")
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OPTIONS: Final = ("-r", "-c", "--requirement", "--constraint")
_WITH_VALUE: Final = re.compile(r"(?:-[rc]|--(?:requirement|constraint)=)(.+)")
_OPTION: Final = re.compile(r"(?:^|\s)-")
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
    return b"".join(b"%d %b\n" % (len(found), found) for found in _files(requirements, folder))


def lines_of(requirements: Path, folder: Path) -> list[str]:
    """Return the lines of the file and of those that it references with `-r`, without comments and options.

    Raises:
        InferError: as `contents`.
    """
    lines = [line for found in _files(requirements, folder, "r") for line in _lines(found)]
    return [line for line in (_OPTION.split(line)[0].strip() for line in lines) if line]


def _files(requirements: Path, folder: Path, references: str = "rc") -> Iterator[bytes]:
    seen: set[Path] = set()
    waiting = [requirements]
    while waiting:
        path = waiting.pop(0)
        if path in seen or not path.is_file():
            continue
        if len(seen) == _MAX_FILES:
            raise invalid_arg(f"'{requirements}' names more than {_MAX_FILES} files")
        seen.add(path)
        content = path.read_bytes()
        for option, name in _referenced(content):
            inside = path_inside(folder, str(path.parent / name))
            if inside is None:
                raise invalid_arg(f"'{path}' names '{name}', which is outside of '{folder}'")
            if option in references:
                waiting.append(inside)
        yield content


def _lines(content: bytes) -> list[str]:
    lines = _JOIN.sub("", content.decode(errors="replace")).splitlines()
    return [
        _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), _COMMENT.sub("", line)) for line in lines
    ]


def _referenced(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the references to files: "r" or "c", and the path."""
    for line in _lines(content):
        for option, value in _values(line):
            if not _ADDRESS.match(value):
                yield option, value


def _values(line: str) -> Iterator[tuple[str, str]]:
    try:
        words = iter(shlex.split(line))
    except ValueError:  # an unterminated quote, which pip refuses
        return
    for word in words:
        if word in _OPTIONS:
            yield word.lstrip("-")[0], next(words, "")
        elif (option := _WITH_VALUE.fullmatch(word)) is not None:
            yield word.lstrip("-")[0], option[1]
