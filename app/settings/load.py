"""Makes the settings from what a user wrote."""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import msgspec

from app.settings.clouds import platform_defaults
from app.settings.deprecated import DEPRECATED, STRICT_MODEL_CONFIG, replace_deprecated
from app.settings.flag.errors import SettingsError
from app.settings.flag.flags import Label, Setting, build
from app.settings.flag.ignored import IGNORED
from app.settings.repositories import directories
from app.settings.settings import SETTINGS, ServerSettings
from app.settings.validate import check, exposure


def from_args(args: Mapping[str, object], label: Label = str) -> ServerSettings:
    """Make settings from flags by name.

    Args:
        args: a value is a string, or what YAML made of one; a list for a flag that may be repeated; None
            leaves the default.
        label: spells a flag's name in messages.

    Raises:
        SettingsError: an unknown name, a value that does not fit, or settings that contradict each other.
    """
    given = {name: value for name, value in args.items() if value is not None}
    for name in given:
        if name not in known_names():
            raise SettingsError(f"unknown setting '{label(name)}'{suggestion(name, label)}")
    warnings = [f"warning: {label(name)} has no effect in Nereid" for name in given if name in IGNORED]
    replace_deprecated(given, SETTINGS, label, warnings)
    values = _read(given, SETTINGS, label)
    _read(given, IGNORED, label)
    for name, value in values.items():
        if SETTINGS[name].flag.unused and value != SETTINGS[name].default:
            warnings.append(f"warning: {label(name)} has no effect in this version")
    settings = build(ServerSettings, _complete(values, label))
    check(settings)
    warnings += exposure(settings)
    return msgspec.structs.replace(settings, warnings=tuple(warnings))


def _read(given: Mapping[str, object], table: Mapping[str, Setting], label: Label) -> dict[str, Any]:
    return {name: table[name].read(value, label(name)) for name, value in given.items() if name in table}


def _complete(values: dict[str, Any], label: Label) -> dict[str, Any]:
    """Add the defaults that are not constant."""
    values = _read(platform_defaults(values, os.environ), SETTINGS, label) | values
    paths, must_exist = values.get("model_repository", ()), values.get("exit_on_error", True)
    repositories = directories(paths, label("model_repository"), must_exist)
    address = values.get("metrics_address") or values.get("http_address", SETTINGS["http_address"].default)
    return values | {"model_repository": repositories, "metrics_address": address}


def known_names() -> tuple[str, ...]:
    """Return every name that `from_args` accepts."""
    return (*SETTINGS, *IGNORED, *DEPRECATED, STRICT_MODEL_CONFIG)


def suggestion(name: str, label: Label) -> str:
    """Return "; did you mean ..." for an unknown name that resembles a known one, otherwise ""."""
    close = get_close_matches(name, known_names(), n=1)
    return f"; did you mean '{label(close[0])}'?" if close else ""
