"""The installed distribution: its version, and the command that installs an optional dependency."""

import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "nereid-server"
PROGRAM: Final = DISTRIBUTION.removesuffix("-server")
"""The command, and what the server is called where it acts: in histories, to cameras, in Ray Serve."""
SERVER_PYTHON: Final = Path(sys.executable)
"""The interpreter that executes this process."""

_ROOT: Final = Path(__file__).resolve().parents[3]


def server_version() -> str:
    """Return the version of the installed distribution; "unknown" for a checkout that is not installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


def manual_directory() -> Path:
    """Return where the documentation is as a site, if it is: a wheel's, or what a checkout has built."""
    return _ROOT / "build" / "manual" if (_ROOT / "pyproject.toml").is_file() else _ROOT / "manual"


def install_command(extra: str) -> str:
    """Return the command that installs an extra (pyproject.toml) beside this server, from any directory."""
    if (_ROOT / "pyproject.toml").is_file():  # a checkout
        what = f"-c {_quoted(_ROOT / 'constraints.txt')} -e '{_ROOT}[{extra}]'"
    else:
        what = f"'{DISTRIBUTION}[{extra}]'"
    return f"{_quoted(sys.executable)} -m pip install {what}"


def requirements_command(requirements: str | Path) -> str:
    """Return the command that installs a file of requirements into this process's environment."""
    return f"{_quoted(sys.executable)} -m pip install -r {_quoted(requirements)}"


def compile_command() -> str:
    """Return the command that compiles the extension of this server again, with what is installed now."""
    if (_ROOT / "setup.py").is_file():  # a checkout
        return f"cd {_quoted(_ROOT)} && {_quoted(sys.executable)} setup.py build_ext --inplace"
    anew = "--force-reinstall --no-deps --no-cache-dir"
    return f"{_quoted(sys.executable)} -m pip install {anew} {DISTRIBUTION}"


def _quoted(path: str | Path) -> str:
    return shlex.quote(str(path))
