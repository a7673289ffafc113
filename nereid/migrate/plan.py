"""What a migration finds, and will write: models as values, made of the files of another server.

Everything comes from strangers: names, paths and texts are checked here, in one place, for every source.
"""

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import shortened

MAX_FILES: Final = 100_000
"""Files that a model may have."""
CONFIG: Final = "config.pbtxt"
_MAX_NAME: Final = 200
_MAX_DEPTH: Final = 32
_MAX_TEXT: Final = 500
_MAX_NOTES: Final = 50
_NAME: Final = re.compile(r"\w[\w.+-]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class MigrationError(Exception):
    """Why a source, or a model of it, cannot be migrated."""


class Item(NamedTuple):
    """A file of a model.

    Attributes:
        target: where, relative to the model's directory, with slashes.
        source: the file to link or copy, or the archive that has it; None for `content`.
        content: bytes to write.
        member: the file's name in a zip archive.
    """

    target: str
    source: Path | None = None
    content: bytes = b""
    member: str = ""


class MigratedModel(NamedTuple):
    """A model as it will be in the repository.

    Attributes:
        config: its configuration; the name is its directory's.
        items: its files, without config.pbtxt.
        notes: what could not be carried over, a sentence each.
    """

    config: mc.ModelConfig
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()


class Refused(NamedTuple):
    """A model that cannot be carried over: how it is called, and why."""

    model: str
    reason: str


Found = MigratedModel | Refused


def attempt(name: str, read: Callable[[], Iterable[Found]]) -> Iterator[Found]:
    """Return what is found of a model, or that it is refused: one of them does not stop the others.

    Args:
        name: how to call it while it is not read.
        read: raises whatever the file of a stranger makes a parser raise.
    """
    try:
        found = list(read())
    except MigrationError as error:
        found = [Refused(name, str(error))]
    except OSError as error:
        found = [Refused(name, f"{error.filename or 'a file'} cannot be read: {error.strerror or error}")]
    except Exception as error:
        found = [Refused(name, f"it cannot be read: {type(error).__name__}: {error}")]
    yield from found


def may_be(is_model: Callable[[Path], object], directory: Path) -> bool:
    """Return whether a directory is a model, or cannot be read, which `attempt` will say."""
    try:
        return bool(is_model(directory))
    except OSError:
        return True


def noted(found: Iterable[Found], notes: Iterable[str]) -> Iterator[Found]:
    """Return what was found, with more notes on each model."""
    more = tuple(notes)
    for each in found:
        yield each._replace(notes=(*each.notes, *more)) if isinstance(each, MigratedModel) else each


def planned(found: Iterable[Found], repository: Path) -> list[Found]:
    """Return what to write, all of it checked, and what to refuse."""
    names: set[str] = set()
    return [_planned(each, repository, names) for each in found]


def _planned(found: Found, repository: Path, names: set[str]) -> Found:
    if isinstance(found, Refused):
        return found
    name = found.config.name
    try:
        check(found)
        if name in names:
            raise MigrationError("another model of this source has this name")
        check_absent(repository / name)
    except MigrationError as error:
        return Refused(name, str(error))
    names.add(name)
    more = len(found.notes) - _MAX_NOTES
    notes = (*found.notes[:_MAX_NOTES], f"and {more} notes more") if more > 0 else found.notes
    return found._replace(notes=notes)


def check_absent(target: Path) -> None:
    """Check that a model may be written to a directory.

    Raises:
        MigrationError: there is something.
    """
    if os.path.lexists(target):
        raise MigrationError(f"{target} exists already: remove it, or choose another repository")


def check(model: MigratedModel) -> None:
    """Check the name of a model, and that its files have places of their own in its directory.

    Raises:
        MigrationError: they have not.
    """
    model_name(model.config.name)
    if len(model.items) > MAX_FILES:
        raise MigrationError(f"it has more than {MAX_FILES} files")
    files = {CONFIG}
    for item in model.items:
        target = inside(item.target)
        if target in files:
            raise MigrationError(f"two of its files would be '{printable(target)}'")
        files.add(target)
    for target in files:
        for slash in re.finditer("/", target):
            if target[: slash.start()] in files:
                both = printable(target[: slash.start()])
                raise MigrationError(f"'{both}' would be a file and a directory")


def model_name(name: object) -> str:
    """Return a name if it may be a model's: one plain component of a path, that is no option of a command.

    Raises:
        MigrationError: it may not.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name.encode()) > _MAX_NAME:
        raise MigrationError(
            f"'{printable(name)}' is no name of a model: expected up to {_MAX_NAME} bytes of letters, "
            "digits, '_', '-', '+' and '.', the first a letter, a digit or '_'"
        )
    return name


def printable(text: object) -> str:
    """Return a text of a stranger as one line that may be shown on a terminal."""
    short = shortened(str(text), _MAX_TEXT)
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def inside(path: str) -> str:
    """Return a relative path, without what says nothing in it, if it stays inside of its directory.

    Raises:
        MigrationError: it does not, or is none.
    """
    parts = path.replace("\\", "/").split("/")
    if path.startswith(("/", "~")) or ".." in parts or _CONTROL.search(path) or ":" in parts[0]:
        raise MigrationError(f"'{printable(path)}' leads out of its directory, or is no plain path")
    kept = [part for part in path.split("/") if part not in ("", ".")]
    if not kept or len(kept) > _MAX_DEPTH or not all(map(_is_component, kept)):
        raise MigrationError(f"'{printable(path)}' is no path of a file, or a very long one")
    return "/".join(kept)


def _is_component(name: str) -> bool:
    try:
        return len(os.fsencode(name)) < 256
    except UnicodeEncodeError:
        return False


def file_inside(directory: Path, path: str) -> Path:
    """Return a path in a directory, which may be absolute.

    Raises:
        MigrationError: it leads out of the directory, links followed.
    """
    try:
        stays = (directory / path).resolve().is_relative_to(directory.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL
        raise MigrationError(f"'{printable(path)}' cannot be a path: {error}") from None
    if not stays:
        raise MigrationError(f"'{printable(path)}' leads out of {directory}, by a link or by its name")
    return directory / path


def files_below(directory: Path, target: str) -> Iterator[Item]:
    """Return an item for each file below a directory; `target` goes before its path, "" or with a slash.

    Raises:
        MigrationError: a link leads out of the directory, something is no file, or there are more than
            `MAX_FILES`.
    """
    root = directory.resolve()
    found = 0
    for parent, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if not path.resolve().is_relative_to(root):
                raise MigrationError(f"{path} is a link that leads out of {directory}")
            if not path.is_file():
                raise MigrationError(f"{path} is no file")
            found += 1
            if found > MAX_FILES:
                raise MigrationError(f"{directory} has more than {MAX_FILES} files")
            yield Item(f"{target}{path.relative_to(root).as_posix()}", path)


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes; what is no file is not waited for.

    Raises:
        MigrationError: it is larger, no file, or cannot be read.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())  # as many bytes as are asked for are allocated
            content = file.read(min(limit, status.st_size) + 1) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError) as error:
        raise MigrationError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if content is None:
        raise MigrationError(f"{path} is no file")
    if len(content) > limit:
        raise MigrationError(f"{path} has more than {limit} bytes")
    return content
