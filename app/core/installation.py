"""The command that installs an optional dependency."""

import shlex
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]


def install_command(extra: str) -> str:
    """Return the command that installs an extra (pyproject.toml) beside this server, from any directory."""
    if (_ROOT / "pyproject.toml").is_file():  # a checkout
        what = f"-c {_quoted(_ROOT / 'constraints.txt')} -e '{_ROOT}[{extra}]'"
    else:
        what = f"'nereid-server[{extra}]'"
    return f"{_quoted(sys.executable)} -m pip install {what}"


def _quoted(path: str | Path) -> str:
    return shlex.quote(str(path))
