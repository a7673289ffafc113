"""The check of a Serve configuration before a cluster starts.

Serve builds an application inside the cluster and logs an exception there as a traceback; here a wrong
setting costs one line.
"""

import sys
from pathlib import Path

import yaml

from app.settings.errors import SettingsError
from app.settings.load import from_args

IMPORT_PATH = "nereid:build"


def check(path: Path) -> None:
    """Check the args of every Nereid application in a Serve configuration.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown, wrong or contradicts another.
    """
    try:
        document = yaml.safe_load(path.read_text())
        for application in document.get("applications", []):
            if application.get("import_path") == IMPORT_PATH:
                for warning in from_args(application.get("args") or {}).warnings:
                    print(warning, file=sys.stderr)
    except (OSError, yaml.YAMLError, SettingsError) as error:
        raise SettingsError(f"{path}: {str(error).splitlines()[0]}") from error
