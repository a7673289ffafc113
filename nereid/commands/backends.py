"""`nereid backends`: the environments of backends that run in one of their own."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.core.errors import InferError
from backends.registry.loading import with_environments
from deployments.environments.packaged import PackagedEnvironments, is_current
from nereid.commands.columns import columns

_ABOUT: Final = "Install, list and remove backends that run in an environment of their own."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments, PackagedEnvironments())
    except (OSError, InferError) as error:
        print(error, file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nereid backends", description=_ABOUT)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    names = with_environments()
    for name, run, text in (
        ("install", _install, "install a backend's environment"),
        ("remove", _remove, "remove a backend's environments"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("name", metavar="NAME", choices=names, help=", ".join(names))
        command.set_defaults(run=run)
    commands.add_parser("list", help="list backends and their environments").set_defaults(run=_list)
    return parser


def _install(arguments: argparse.Namespace, environments: PackagedEnvironments) -> int:
    began = time.monotonic()
    lease = environments.install(arguments.name, shown=True)
    size = _bytes(lease.directory) / 1e6
    print(
        f"backend '{arguments.name}' is in {lease.directory}: {size:.0f} MB, {time.monotonic() - began:.0f} s"
    )
    lease.release()
    return 0


def _list(arguments: argparse.Namespace, environments: PackagedEnvironments) -> int:
    installed = environments.installed()
    rows = [("backend", "state", "MB", "directory")]
    for key, directory in installed.items():
        state = "installed" if is_current(key) else "of another version"
        rows.append((key.rpartition("-")[0], state, f"{_bytes(directory) / 1e6:.0f}", str(directory)))
    present = {key.rpartition("-")[0] for key in installed if is_current(key)}
    rows += [(name, "not installed", "-", "-") for name in with_environments() if name not in present]
    print(columns(rows))
    return 0


def _remove(arguments: argparse.Namespace, environments: PackagedEnvironments) -> int:
    used = environments.remove(arguments.name)
    for key in used:
        print(f"{environments.root / key} is in use", file=sys.stderr)
    return 1 if used else 0


def _bytes(directory: Path) -> int:
    found = (Path(folder) / name for folder, _, names in os.walk(directory) for name in names)
    return sum(path.lstat().st_size for path in found)
