"""Makes a Python environment from a requirements.txt."""

import os
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Final

from app.core.errors import internal
from deployments.environments.requirements import contents

_OUTPUT_CHARACTERS: Final = 4000
_INSTALL_S: Final = 600.0


def environment_key(requirements: Path, inside: Path) -> str:
    """Return a name for the environment of a requirements.txt, all of whose files must be in `inside`."""
    content = f"{sys.version} {sys.platform}\n".encode() + contents(requirements, inside)
    return blake2b(content, digest_size=16).hexdigest()


def install(name: str, requirements: Path, root: Path, final: Path, shown: bool = False) -> None:
    """Make an environment.

    Args:
        name: what it is for, in errors.
        requirements: of its packages.
        root: an empty directory.
        final: where the directory will be.
        shown: whether pip writes to this process's output, and may take any time.

    Raises:
        InferError: INTERNAL with pip's output when it fails, or takes too long.
    """
    python = root / "bin" / "python"
    _run(name, requirements, [sys.executable, "-m", "venv", str(root)], python, shown)
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    _run(name, requirements, [*pip, "-r", requirements.name, "numpy"], python, shown)
    _relocate(root, final)


def _run(name: str, requirements: Path, command: list[str], python: Path, shown: bool) -> None:
    from backends.python.worker.activation import environment_variables  # few models need it

    try:
        done = subprocess.run(
            command,
            cwd=requirements.parent,
            env=environment_variables(python, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            timeout=None if shown else _INSTALL_S,
        )
    except subprocess.TimeoutExpired as error:
        raise internal(f"installing '{requirements}' of {name} took over {_INSTALL_S:g} s") from error
    if done.returncode:
        output = (done.stdout or b"").decode(errors="replace")[-_OUTPUT_CHARACTERS:].strip()
        raise internal(f"installing '{requirements}' of {name} failed: {output}")


def _relocate(root: Path, final: Path) -> None:
    """Replace the path of the interpreter in the programs of the environment by its final one."""
    for program in (root / "bin").iterdir():
        if program.is_file() and not program.is_symlink():
            program.write_bytes(program.read_bytes().replace(os.fsencode(root), os.fsencode(final)))
