"""Where model repositories may be: directories, and places in clouds for which a package is installed."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from app.settings.flags import SettingsError

REMOTE_EXTRAS: Final = {"s3": "s3", "gs": "gs", "as": "azure"}
"""Extras of this package that remote repositories need, by the scheme of their address."""

REMOTE_PACKAGES: Final = {"s3": "s3fs", "gs": "gcsfs", "as": "adlfs"}


def directories(paths: tuple[str, ...], label: str) -> tuple[str, ...]:
    """Make repository paths absolute, each once."""
    if not paths:
        raise SettingsError(f"{label} must be specified")
    for path in paths:
        if "://" in path:
            _check_remote(path, label)
            continue
        if not Path(path).exists():
            raise SettingsError(f"{label}: directory '{path}' does not exist")
        if not Path(path).is_dir():
            raise SettingsError(f"{label}: '{path}' is not a directory")
    return tuple(
        dict.fromkeys(path.rstrip("/") if "://" in path else str(Path(path).resolve()) for path in paths)
    )


def _check_remote(url: str, label: str) -> None:
    scheme = url.partition("://")[0]
    extra = REMOTE_EXTRAS.get(scheme)
    if extra is None:
        raise SettingsError(f"{label}: expected a directory, s3://, gs:// or as://, got '{url}'")
    package = REMOTE_PACKAGES[scheme]
    if find_spec(package) is None:
        raise SettingsError(f"{label}: '{url}' needs the package {package}: pip install 'nereid[{extra}]'")
