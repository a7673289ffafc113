"""Conversion of a flag's text, or of what YAML made of it, into a value."""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from app.settings.flag.errors import SettingsError


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a flag's values.

    Attributes:
        low, high: inclusive bounds of a number.
        choices: the strings allowed, compared without case and kept as written here.
        counts: an integer that may also be given as true (1) or false (0).
        pair: separator of a string that must be a pair of numbers.
    """

    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    counts: bool = False
    pair: str = ""


_BOOLEANS: Final[Mapping[str, bool]] = {
    "true": True, "on": True, "1": True, "false": False, "off": False, "0": False
}  # fmt: skip


def _boolean(value: object, limits: Limits, label: str) -> bool:
    answer = _BOOLEANS.get(str(value).lower())
    if answer is None:
        raise SettingsError(
            f"{label}: invalid value for bool option: {value!r}, expected true, false, on, off, 1 or 0"
        )
    return answer


def _integer(value: object, limits: Limits, label: str) -> int:
    if limits.counts and str(value).lower() in ("true", "false"):
        return int(_boolean(value, limits, label))
    try:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return int(_within(int(value), limits, label, "an integer"))
    except ValueError:
        pass
    raise SettingsError(f"{label}: expected an integer, got {value!r}")


def _number(value: object, limits: Limits, label: str) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool) and isfinite(float(value)):
            return _within(float(value), limits, label, "a number")
    except ValueError:
        pass
    raise SettingsError(f"{label}: expected a number, got {value!r}")


def _within(number: float, limits: Limits, label: str, noun: str) -> float:
    low, high = limits.low, limits.high
    if (low is None or number >= low) and (high is None or number <= high):
        return number
    if high is None:
        raise SettingsError(f"{label}: expected {noun} of at least {low:.12g}, got {number}")
    raise SettingsError(f"{label}: expected {noun} from {low:.12g} to {high:.12g}, got {number}")


def read_text(value: object, limits: Limits, label: str) -> str:
    """Convert to a string; see `READERS`."""
    if isinstance(value, bool) and "off" in limits.choices and not value:
        return "off"  # YAML reads a bare `off` as false
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SettingsError(f"{label}: expected a string, got {value!r}")
    if limits.pair and value:
        _check_pair(str(value), limits.pair, label)
    if not limits.choices:
        return str(value)
    for choice in limits.choices:
        if str(value).lower() == choice.lower():
            return choice
    raise SettingsError(f"{label}: expected one of {', '.join(limits.choices)}, got {value!r}")


def _check_pair(value: str, between: str, label: str) -> None:
    parts = value.split(between)
    if len(parts) != 2:
        raise SettingsError(
            f"{label}: Cannot parse pair option due to incorrect number of inputs."
            f"--<pair option> argument requires format <first>{between}<second>. Found: {value}"
        )
    for part in parts:
        try:
            float(part)
        except ValueError:
            raise SettingsError(f"{label}: Invalid option value. Got {part}") from None


READERS: Final[Mapping[type, Callable[[object, Limits, str], Any]]] = {
    bool: _boolean, int: _integer, float: _number, str: read_text
}  # fmt: skip
"""By type: converts a value, within limits; messages name the flag by the label."""
