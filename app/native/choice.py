"""Whether the data plane of this process is the compiled one."""

import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

from app.core.errors import unsupported
from app.core.installed.installation import compile_command
from app.native.sources import digest

CHOICES: Final = ("auto", "native", "python")


def is_native(data_plane: str) -> bool:
    """Return whether a process with this setting uses `app.native.extension`; only then may it be imported.

    Args:
        data_plane: one of `CHOICES`.

    Raises:
        InferError: UNSUPPORTED for "native" where the extension is not there.
    """
    if data_plane == "native" and missing():
        raise unsupported(f"--data-plane=native needs the compiled data plane: {missing()}")
    return data_plane != "python" and not missing()


def described(data_plane: str) -> str:
    """Return "native", or "python" with the reason."""
    if data_plane == "python":
        return "python (--data-plane)"
    return "native" if is_native(data_plane) else f"python: {missing()}"


@cache
def missing() -> str:
    """Return why the extension cannot be used, and what to do about that; "" where it can."""
    try:
        from app.native import extension
    except ModuleNotFoundError:
        return (
            "it was not compiled at the installation; install gcc or clang, or the package ziglang, and "
            f"{_headers()}then run: {compile_command()}"
        )
    except ImportError as error:  # compiled for another Python or C library
        return f"it cannot be loaded ({error}); run: {compile_command()}"
    if (digest() or extension.SOURCES) != extension.SOURCES:
        return f"it was compiled from other sources than these; run: {compile_command()}"
    return ""


def _headers() -> str:
    if Path(sysconfig.get_path("include"), "Python.h").exists():
        return ""
    return f"the headers of Python {sys.version_info[0]}.{sys.version_info[1]}, "
