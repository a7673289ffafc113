"""Environment variables of a process that runs in a Python environment of its own."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from app.core.errors import internal

_FOREIGN: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX")
_ACTIVATION_S: Final = 30.0


def environment_variables(python: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables after the `activate` of the interpreter's environment.

    Raises:
        InferError: INTERNAL with the output of the scripts, when a script of a conda environment fails.
    """
    root = python.parent.parent
    known = {name: value for name, value in inherited.items() if name not in _FOREIGN}
    known["PATH"] = os.pathsep.join(filter(None, (str(python.parent), known.get("PATH"))))
    known["PYTHONUNBUFFERED"] = "1"
    if (root / "pyvenv.cfg").exists():
        known["VIRTUAL_ENV"] = str(root)
    elif (root / "conda-meta").is_dir():
        known["CONDA_PREFIX"] = str(root)
        # As in Triton, libraries of the environment come before those of the machine.
        libraries = filter(None, (str(root / "lib"), known.get("LD_LIBRARY_PATH")))
        known["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        return _activated(root, known)
    return known


def _activated(root: Path, known: dict[str, str]) -> dict[str, str]:
    """Return the variables after the activation scripts of a conda environment's packages."""
    scripts = sorted(map(str, (root / "etc" / "conda" / "activate.d").glob("*.sh")))
    if not scripts:
        return known
    command = ["bash", "-c", 'for each; do . "$each" >&2; done; exec env -0', "activate", *scripts]
    try:
        done = subprocess.run(command, env=known, capture_output=True, timeout=_ACTIVATION_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise internal(f"unable to activate the environment {root}: {error}") from error
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip()
        status = f"exit status {done.returncode}"
        raise internal(f"activating the environment {root} ended with {status}: {output}")
    pairs = (os.fsdecode(pair).partition("=") for pair in done.stdout.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}
