"""Compilation of `libtritonserver.so`, the library that C++ backends are linked with, from `shim/`.

It is compiled when it is first needed on a machine, within seconds, and kept in a directory that only this
user may enter. Nothing but the files of this package is ever compiled.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Final

from app.core.errors import internal, unsupported
from app.core.files.private_files import private_directory, private_root
from app.core.installed import compilers
from app.core.installed.installation import install_command

SOURCES: Final = Path(__file__).parent / "shim"
NAME: Final = "libtritonserver.so"
"""What backends are linked with."""
FLAGS: Final = (
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Wshadow", f"-Wl,-soname,{NAME}"),
)
EXTRA: Final = "cpp"
_TIMEOUT_S: Final = 600


def built_library(root: Path | None = None) -> Path:
    """Return the compiled library; compile it if this version of it is not there.

    Args:
        root: the directory of compiled libraries; by default this user's.

    Raises:
        InferError: UNSUPPORTED without a compiler; INTERNAL with what the compiler said.
    """
    digest = blake2b(repr(FLAGS).encode(), digest_size=12)
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    directory = (root or Path(private_root())) / "cpp_backends" / digest.hexdigest()
    private_directory(str(directory))
    library = directory / NAME
    if not library.exists():
        _compile_once(library)
    return library


def compiler() -> list[str]:
    """Return the command of a C++ compiler; see `app.core.installed.compilers.compiler`.

    Raises:
        InferError: UNSUPPORTED when there is none.
    """
    found = compilers.compiler("c++")
    if found is None:
        raise unsupported(
            "C++ backends need a C++ compiler once, to compile the library that they are linked with; install"
            f" g++ or clang++, or the extra: {install_command(EXTRA)}"
        )
    return found


def _compile_once(library: Path) -> None:
    """Compile the library unless another load does: the models of a server load together."""
    folder = os.open(library.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not library.exists():
            for left in library.parent.iterdir():  # by compilations that were killed
                shutil.rmtree(left, ignore_errors=True)
            _compile(library)
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)  # processes that were forked meanwhile have the descriptor too
        os.close(folder)


def _compile(library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        made = Path(directory) / NAME
        command = [*compiler(), *FLAGS, str(SOURCES / "shim.cpp"), "-o", str(made), "-ldl"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        if result.returncode:
            raise internal(f"unable to compile {NAME} ({command[0]}): {result.stderr.strip()[-2000:]}")
        os.replace(made, library)
