"""`python -m app.settings.check_config serve_config.yaml`: check settings before a cluster starts.

Serve builds an application inside the cluster and reports what that raised as a traceback in its log; here a
wrong setting costs one line.
"""

import sys
from pathlib import Path

import yaml

from app.settings.flags import SettingsError
from app.settings.settings import from_args

IMPORT_PATH = "app.main:build"


def check(path: Path) -> None:
    """Check the args of every Nereid application in a Serve configuration.

    Raises:
        SettingsError: the file cannot be read, or a setting is unknown, wrong or contradicts another.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: {str(error).splitlines()[0]}") from error
    for application in document.get("applications", []):
        if application.get("import_path") == IMPORT_PATH:
            for warning in from_args(application.get("args") or {}).warnings:
                print(warning, file=sys.stderr)


if __name__ == "__main__":
    try:
        check(Path(sys.argv[1]))
    except SettingsError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
