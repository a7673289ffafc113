"""The check of a Serve configuration before a cluster starts.

Serve builds an application inside the cluster and logs an exception there as a traceback; here a wrong
setting costs one line.
"""

import sys
from pathlib import Path

import yaml

from app.settings.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings

IMPORT_PATH = "nereid:build"


def check(path: Path) -> list[ServerSettings]:
    """Check the args of every Nereid application in a Serve configuration; return their settings.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown, wrong or contradicts another.
    """
    try:
        document = yaml.safe_load(path.read_text())
        servers = [
            each for each in document.get("applications", []) if each.get("import_path") == IMPORT_PATH
        ]
        found = [from_args(server.get("args") or {}) for server in servers]
    except (OSError, yaml.YAMLError, SettingsError) as error:
        raise SettingsError(f"{path}: {str(error).splitlines()[0]}") from error
    for settings in found:
        for warning in settings.warnings:
            print(warning, file=sys.stderr)
    return found
