"""`nereid files`: write the files that the distribution has for operators."""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from nereid.internals import ROOT

_ABOUT: Final = "Write files to deploy and to watch a server with, or the documentation, into a directory."
_EXAMPLE: Final = "example: nereid files prometheus /etc/prometheus"
_PLACES: Final = {
    "docker": "cluster/docker",
    "docs": "docs",
    "grafana": "cluster/grafana",
    "helm": "cluster/helm",
    "kubernetes": "cluster/kubernetes",
    "prometheus": "cluster/prometheus",
    "ray": "cluster",
    "systemd": "cluster/systemd",
}
"""Directories by what they are called; of the one that has others, the files alone."""
_SOURCES: Final = (".py", ".pyc")
"""What writes dashboards is no file for operators."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(prog="nereid files", description=_ABOUT, epilog=_EXAMPLE)
    parser.add_argument("what", choices=sorted(_PLACES), help="which files")
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="where they go; made if need be")
    parser.add_argument("--force", action="store_true", help="write over files that are others")
    options = parser.parse_args(argv)
    try:
        written = write(options.what, options.directory, options.force)
    except (OSError, ValueError) as error:
        print(f"{options.what}: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(path)
    return 0


def write(what: str, directory: Path, force: bool = False) -> list[Path]:
    """Write files into a directory; return them.

    Raises:
        ValueError: the installation has none, or the directory has others of a name; nothing was written.
        OSError: they cannot be written.
    """
    source = ROOT / _PLACES[what]
    found = [path.relative_to(source) for path in sorted(_files(source, what != "ray"))]
    if not found:
        raise ValueError(f"this installation has no such files at {source}: install the distribution's wheel")
    for path in found:
        there = directory / path
        if not force and there.exists() and there.read_bytes() != (source / path).read_bytes():
            raise ValueError(f"{there} is there, and another file: --force writes over it")
    for path in found:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, directory / path)
    return [directory / path for path in found]


def _files(folder: Path, deep: bool) -> Iterator[Path]:
    paths = folder.rglob("*") if deep else folder.glob("*")
    return (path for path in paths if path.is_file() and path.suffix not in _SOURCES)
