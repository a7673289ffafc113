"""Python environments for tests, made in a moment: numpy is borrowed from the one that runs the tests."""

import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def borrow(folder: Path, *modules: str) -> Path:
    """An environment with these modules, and their libraries, of the one that runs the tests."""
    python = make(folder, borrow_numpy=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in modules:
        module = find_spec(name)
        assert module is not None
        folders = module.submodule_search_locations
        source = Path(folders[0] if folders else str(module.origin))
        for found in (source, source.with_name(f"{name}.libs")):
            if found.exists():
                (packages / found.name).symlink_to(found)
    return python


def borrow_pinned(folder: Path, requirements: Path) -> Path:
    """An environment with the distributions that a file pins, of those that the tests' own has."""
    python = make(folder, borrow_numpy=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for line in requirements.read_text().split():
        try:
            found = distribution(line.partition("==")[0])
        except PackageNotFoundError:
            continue
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(str(found.locate_file(top)))
    return python


def make(folder: Path, borrow_numpy: bool = True) -> Path:
    """An environment without pip; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    if borrow_numpy:
        (packages / "borrowed.pth").write_text(str(Path(np.__file__).parent.parent))
    (packages / "only_here.py").write_text(f"WHERE = {str(folder)!r}\nABOVE = {sys.prefix!r}\n")
    return folder / "bin" / "python"
