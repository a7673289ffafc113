"""Python environments for tests, made in a moment: numpy is borrowed from the one that runs the tests."""

import sys
import venv
from pathlib import Path

import numpy as np


def make(folder: Path, borrow_numpy: bool = True) -> Path:
    """An environment without pip; returns its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    if borrow_numpy:
        (packages / "borrowed.pth").write_text(str(Path(np.__file__).parent.parent))
    (packages / "only_here.py").write_text(f"WHERE = {str(folder)!r}\nABOVE = {sys.prefix!r}\n")
    return folder / "bin" / "python"
