"""What a requirements.txt and the files that it names say, to tell whether they have changed."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from app.core.errors import invalid_arg

_MAX_FILES: Final = 1000
# The format is pip's ("Requirements File Format"): lines are joined at a backslash, " #" begins a comment,
# ${NAME} is the environment's, and paths are relative to the file that names them.
_JOINT: Final = re.compile(r"\\\r?\n")
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")
_VARIABLE: Final = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OPTIONS: Final = ("-r", "-c", "--requirement", "--constraint")
_WITH_VALUE: Final = re.compile(r"(?:-[rc]|--(?:requirement|constraint)=)(.+)")
_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def contents(requirements: Path, folder: Path) -> bytes:
    """The file, and all that it names with `-r` and `-c`, each once, in the order in which they are named.

    A file that is not there adds nothing: pip says what it thinks of that. Nor does what is at an address.

    Args:
        requirements: the file to begin with.
        folder: what no file may be outside of.

    Raises:
        InferError: INVALID_ARG for a file that is, or for too many of them.
    """
    root = folder.resolve()
    found: dict[Path, bytes] = {}
    waiting = [requirements]
    while waiting:
        path = waiting.pop(0)
        known = path.resolve()
        if known in found or not known.is_file():
            continue
        if len(found) == _MAX_FILES:
            raise invalid_arg(f"'{requirements}' names more than {_MAX_FILES} files")
        found[known] = path.read_bytes()
        for named in _named(found[known]):
            if not (path.parent / named).resolve().is_relative_to(root):
                raise invalid_arg(f"'{path}' names '{named}', which is outside of '{folder}'")
            waiting.append(path.parent / named)
    return b"".join(b"%d %b\n" % (len(content), content) for content in found.values())


def _named(content: bytes) -> Iterator[str]:
    for line in _JOINT.sub("", content.decode(errors="replace")).splitlines():
        said = _VARIABLE.sub(lambda name: os.environ.get(name[1], name[0]), _COMMENT.sub("", line))
        for named in _values(said):
            if not _ADDRESS.match(named):
                yield named


def _values(line: str) -> Iterator[str]:
    try:
        words = iter(shlex.split(line))
    except ValueError:  # a quote that does not end, which pip refuses
        return
    for word in words:
        if word in _OPTIONS:
            yield next(words, "")
        elif (option := _WITH_VALUE.fullmatch(word)) is not None:
            yield option[1]
