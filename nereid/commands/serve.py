"""`nereid serve`: one file, one command: a server of the model that a file or folder is."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from app.core.files.private_files import private_directory, private_root
from deployments.model_store.layout import models_in
from nereid.commands.new.command import add_inputs
from nereid.commands.new.starts import from_source, name_for
from nereid.migrate.plan import Item, MigratedModel, MigrationError, printable
from nereid.migrate.writing import write
from nereid_client.tools.arguments import command_parser

_ABOUT: Final = """Serve a file or folder as it stands: what 'nereid new' makes a model of, a model's
directory, or a repository. The server's flags may follow. The model's directory is temporary, with links to
the file; 'nereid new' makes one that stays."""
_EXAMPLE: Final = """examples:
  nereid serve model.onnx
  nereid serve model.pt --input x:FP32:3,224,224 --name net
  nereid serve ./my_model --http-port=9000        # a folder with model.py"""


def main(argv: Sequence[str], server: Callable[[Sequence[str]], None]) -> int:
    """Run the command, by what runs the server; return its exit status."""
    usage = "nereid serve PATH [--name NAME] [--input NAME:TYPE:DIMS ...] [--FLAG=VALUE ...]"
    parser = command_parser("nereid serve", _ABOUT, _EXAMPLE, usage=usage, allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="PATH", help="a file or folder")
    parser.add_argument("--name", help="of the model; by default that of the file")
    add_inputs(parser)
    given, flags = parser.parse_known_args(argv)
    try:
        with repository_of(given) as repository:
            server([f"--model-repository={repository}", *flags])
    except MigrationError as error:
        print(f"nereid serve: {printable(error)}", file=sys.stderr)
        return 2
    return 0


@contextmanager
def repository_of(given: argparse.Namespace) -> Iterator[Path]:
    """Return a repository with what is to be served, for the time of a block.

    Raises:
        MigrationError: no model can be made of it.
    """
    path: Path = given.path
    if path.is_dir() and not _is_model(path) and models_in(path):
        yield path
        return
    name = given.name or name_for(path)
    parent = os.path.join(private_root(), "serve")
    private_directory(parent)
    with tempfile.TemporaryDirectory(dir=parent) as scratch:
        repository = Path(scratch)
        if path.is_dir() and _is_model(path):
            (repository / name).symlink_to(path.absolute())
        else:
            made = from_source(name, path, given.input)
            _write(made, repository)
            for note in made.notes:
                print(f"note: {note}", file=sys.stderr)
        yield repository


def _is_model(folder: Path) -> bool:
    """Return whether a folder is a model's directory as it stands."""
    versions = any(each.is_dir() and each.name.isdecimal() for each in folder.iterdir())
    return (folder / "config.pbtxt").is_file() or versions


def _write(made: MigratedModel, repository: Path) -> None:
    """Write a model, with links in place of files: they may be large, and on another disk."""
    own = [item for item in made.items if item.source is None]
    write(made._replace(items=tuple(own)), repository)
    for item in made.items:
        if item.source is not None:
            _link(item, repository / made.config.name)


def _link(item: Item, directory: Path) -> None:
    assert item.source is not None
    target = directory / item.target
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(item.source.absolute())
