"""Writes models into a repository, each whole or not at all; removes nothing that it has not made."""

import os
import shutil
import zipfile
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import IO, NamedTuple

from google.protobuf import text_format

from nereid.migrate.plan import (
    CONFIG,
    Item,
    MigratedModel,
    MigrationError,
    check,
    check_absent,
    inside,
)


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
    """Write a model into a repository; files are linked where that is possible.

    Links are hard ones: what is written stays when its source goes.

    Raises:
        MigrationError: there is a model of this name, `check` refuses it, or a file cannot be written.
    """
    check(model)
    target = repository / model.config.name
    check_absent(target)
    try:
        repository.mkdir(parents=True, exist_ok=True)
        partial = repository / f".{model.config.name}.{token_hex(4)}.migrating"
        partial.mkdir()
    except OSError as error:
        raise MigrationError(f"cannot write {target}: {error.strerror}") from error
    try:
        written = _write_files(model, partial, copy)
        partial.rename(target)
        return written
    except MigrationError:
        raise
    except Exception as error:  # of the disk, or of what unpacks an archive
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise MigrationError(f"cannot write {target}: {text}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_files(model: MigratedModel, directory: Path, copy: bool) -> Written:
    config = Item(CONFIG, content=text_format.MessageToString(model.config).encode())
    with _Archives() as archives:
        linked = sum([_write_item(item, directory, copy, archives) for item in (config, *model.items)])
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return Written(len(sizes), linked, sum(sizes))


class _Archives(ExitStack):
    """The archives that files are taken from, each opened once: that reads the names of all its files."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Path, zipfile.ZipFile] = {}

    def member(self, archive: Path, name: str) -> IO[bytes]:
        """Open a file of an archive."""
        if archive not in self._open:
            self._open[archive] = self.enter_context(zipfile.ZipFile(archive))
        return self._open[archive].open(name)


def _write_item(item: Item, directory: Path, copy: bool, archives: _Archives) -> bool:
    """Write a file; return whether it is a link."""
    path = directory / inside(item.target)
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.source is None:
        path.write_bytes(item.content)
        return False
    if item.member:
        with archives.member(item.source, item.member) as packed, path.open("xb") as file:
            shutil.copyfileobj(packed, file)
        return False
    if not copy:
        try:
            os.link(os.path.realpath(item.source), path)  # os.link follows no link on Linux
            return True
        except OSError:  # another file system, a file of somebody else
            pass
    shutil.copyfile(item.source, path)
    return False
