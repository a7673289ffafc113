"""Environment variables of a process that runs in a Python environment of its own."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from app.core.errors import internal
from app.core.installed.installation import SERVER_PYTHON

_FOREIGN: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX")
_ACTIVATION_S: Final = 30.0


def environment_variables(python: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables after the `activate` of the interpreter's environment; the server's is active.

    Raises:
        InferError: INTERNAL with the output of the scripts, when a script of a conda environment fails.
    """
    if python == SERVER_PYTHON:
        return {**inherited, "PYTHONUNBUFFERED": "1"}
    root = python.parent.parent
    variables = {name: value for name, value in inherited.items() if name not in _FOREIGN}
    variables["PATH"] = os.pathsep.join(filter(None, (str(python.parent), variables.get("PATH"))))
    variables["PYTHONUNBUFFERED"] = "1"
    if (root / "pyvenv.cfg").exists():
        variables["VIRTUAL_ENV"] = str(root)
    elif (root / "conda-meta").is_dir():
        variables["CONDA_PREFIX"] = str(root)
        # As in Triton, libraries of the environment come before those of the machine.
        libraries = filter(None, (str(root / "lib"), variables.get("LD_LIBRARY_PATH")))
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
        return _activated(root, variables)
    return variables


def _activated(root: Path, variables: dict[str, str]) -> dict[str, str]:
    """Return the variables after the activation scripts of a conda environment's packages."""
    scripts = sorted(map(str, (root / "etc" / "conda" / "activate.d").glob("*.sh")))
    if not scripts:
        return variables
    command = ["bash", "-c", 'for each; do . "$each" >&2; done; exec env -0', "activate", *scripts]
    try:
        result = subprocess.run(
            command, env=variables, capture_output=True, timeout=_ACTIVATION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise internal(f"unable to activate the environment {root}: {error}") from error
    if result.returncode:
        output = result.stderr.decode(errors="replace").strip()
        status = f"exit status {result.returncode}"
        raise internal(f"activating the environment {root} ended with {status}: {output}")
    pairs = (os.fsdecode(pair).partition("=") for pair in result.stdout.split(b"\0") if pair)
    return {name: value for name, _, value in pairs}
