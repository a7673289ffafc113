"""Compilers of C and C++ on this machine. `setup.py` uses this module too, so it needs no package."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Final, Literal

Language = Literal["cc", "c++"]

_KNOWN: Final = {"cc": ("CC", "gcc", "clang"), "c++": ("CXX", "g++", "clang++")}


def compiler(language: Language) -> list[str] | None:
    """Return the command of a compiler, the system's or that of the package `ziglang`; None without any."""
    variable, *others = _KNOWN[language]
    for name in (os.environ.get(variable) or language, *others):
        found = shutil.which(name)
        if found:
            return [found]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", language]
    return None


def compiler_while_installing() -> list[str] | None:
    """Return the command of a C compiler, also of a `ziglang` that pip hides from what it builds."""
    found = compiler("cc")
    if found is None:
        zig = [sys.executable, "-I", "-m", "ziglang"]
        if not subprocess.run([*zig, "version"], capture_output=True, check=False).returncode:
            return [*zig, "cc"]
    return found
