"""What a migration writes: models as values, made of the files of another server, and written in one step."""

import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

MAX_FILES: Final = 100_000
"""Files that a version of a model may have."""


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


class Written(NamedTuple):
    """What was written of a model.

    Attributes:
        files: number of files.
        linked: how many of them share their content with those of the source.
        nbytes: bytes of all of them.
    """

    files: int
    linked: int
    nbytes: int


def write(model: MigratedModel, repository: Path, copy: bool = False) -> Written:
    """Write a model into a repository, whole or not at all; files are linked where that is possible.

    Links are hard ones: what is written stays when its source goes.

    Raises:
        MigrationError: there is a model of this name, or a file cannot be written.
    """
    name = model.config.name
    target, partial = repository / name, repository / f".{name}.migrating"
    if os.path.lexists(target):
        raise MigrationError(f"{target} exists already: remove it, or choose another repository")
    try:
        repository.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        config = Item("config.pbtxt", content=text_format.MessageToString(model.config).encode())
        linked = sum([_write_item(item, partial, copy) for item in (config, *model.items)])
        sizes = [path.stat().st_size for path in partial.rglob("*") if path.is_file()]
        partial.rename(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise MigrationError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Written(len(sizes), linked, sum(sizes))


def _write_item(item: Item, directory: Path, copy: bool) -> bool:
    """Write a file; return whether it is a link."""
    path = directory / inside(item.target)
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.source is None:
        path.write_bytes(item.content)
        return False
    if item.member:
        with (
            zipfile.ZipFile(item.source) as archive,
            archive.open(item.member) as packed,
            path.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file)
        return False
    if not copy:
        try:
            os.link(item.source, path, follow_symlinks=True)
            return True
        except OSError:  # another file system, a file of somebody else
            pass
    shutil.copyfile(item.source, path)
    return False


def inside(path: str) -> str:
    """Return a relative path if it stays inside of its directory.

    Raises:
        MigrationError: it does not.
    """
    parts = path.replace("\\", "/").split("/")
    if path.startswith(("/", "~")) or ".." in parts or "\x00" in path or ":" in parts[0]:
        raise MigrationError(f"'{path}' leads out of its directory")
    return path


def files_below(directory: Path, target: str) -> Iterator[Item]:
    """Return an item for each file below a directory, under `target`.

    Raises:
        MigrationError: a link leads out of the directory, or there are more than `MAX_FILES`.
    """
    root = directory.resolve()
    found = 0
    for parent, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if not path.resolve().is_relative_to(root):
                raise MigrationError(f"{path} is a link that leads out of {directory}")
            found += 1
            if found > MAX_FILES:
                raise MigrationError(f"{directory} has more than {MAX_FILES} files")
            yield Item(f"{target}/{path.relative_to(root).as_posix()}", path)


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes.

    Raises:
        MigrationError: it is larger, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise MigrationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > limit:
        raise MigrationError(f"{path} has more than {limit} bytes")
    return content
