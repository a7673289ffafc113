"""The check of a Serve configuration before a cluster starts.

Serve builds an application inside the cluster and logs an exception there as a traceback; here a wrong
setting costs one line.
"""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings

IMPORT_PATH = "nereid:build"
_NOT_ONE: Final = "no configuration of Ray Serve"


def check(path: Path) -> list[ServerSettings]:
    """Check the args of every Nereid application in a Serve configuration; return their settings.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown, wrong or contradicts another.
    """
    try:
        servers = [each for each in _applications(path) if each.get("import_path") == IMPORT_PATH]
        found = [from_args(server.get("args") or {}) for server in servers]
    except (OSError, ValueError, yaml.YAMLError, SettingsError) as error:
        raise SettingsError(f"{path}: {str(error).splitlines()[0]}") from error
    for settings in found:
        for warning in settings.warnings:
            print(warning, file=sys.stderr)
    return found


def _applications(path: Path) -> list[dict[str, Any]]:
    try:
        document = yaml.safe_load(path.read_text())
    except (ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{_NOT_ONE}: {str(error).splitlines()[0]}") from error
    found = document.get("applications") if isinstance(document, dict) else None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise SettingsError(f"{_NOT_ONE}: it has no list 'applications'")
    return found
