"""Names of the server's modules in this process; see `app/core/installed/private_packages.py`."""

from importlib import import_module
from types import ModuleType
from typing import Final

PREFIX: Final = __name__.removesuffix("app.core.installed.own_modules")
"""What stands before the names of all our modules here: "" but where others may have such packages."""


def import_own(name: str) -> ModuleType:
    """Import one of our modules by its name as it is written elsewhere, such as `app.core.errors`."""
    return import_module(PREFIX + name)
