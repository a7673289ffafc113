"""Access to settings by the names of their flags."""

import functools

from app.settings.settings import SETTINGS, ServerSettings


def value_of(settings: ServerSettings, flag: str) -> object:
    """Return the value that a flag has in the settings."""
    return functools.reduce(getattr, SETTINGS[flag].path, settings)
