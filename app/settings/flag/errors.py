"""The error of unusable settings."""


class SettingsError(Exception):
    """The settings cannot be used; the text is one line that names the setting and what was expected."""
