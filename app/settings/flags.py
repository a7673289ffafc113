"""What a setting may hold, and how a value from a command line or a YAML file becomes one.

A setting is a field of `ServerSettings` annotated with a `Flag`; its type is one of bool, int, float, str
and tuple[str, ...].
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec

Label = Callable[[str], str]


class SettingsError(Exception):
    """The settings cannot be used; the text is one line that names the setting and what was expected."""


class Flag(msgspec.Struct, frozen=True):
    """What is known of a setting besides its name, type and default.

    Attributes:
        help: one sentence for the usage text.
        heading: starts a group of the usage text.
        low, high: inclusive bounds of a number.
        choices: the strings allowed, compared without case and kept as written here.
        bare: the flag takes no value on a command line; its presence means true.
        counts: an integer that may also be given as true (1) or false (0).
        pair: what is between the two numbers of a string that is a pair of them.
        later: the setting has no effect in this version: any value but the default is warned about.
    """

    help: str
    heading: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    bare: bool = False
    counts: bool = False
    pair: str = ""
    later: bool = False


class Setting(msgspec.Struct, frozen=True):
    """One row of the table of settings."""

    name: str
    type: Any
    default: Any
    flag: Flag

    @property
    def repeats(self) -> bool:
        """Whether the flag may be given several times."""
        return get_origin(self.type) is tuple

    def read(self, value: object, label: str) -> Any:
        """Convert a value.

        Args:
            value: a string from a command line, or whatever YAML made of the text.
            label: the setting's name as the user wrote it.

        Raises:
            SettingsError: when the value is not one the setting may hold.
        """
        if self.repeats:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(_text(item, self.flag, label) for item in items)
        return _READERS[self.type](value, self.flag, label)


def table(settings: type[msgspec.Struct]) -> dict[str, Setting]:
    """The settings a class declares, by name, in the order of their declaration."""
    hints = get_type_hints(settings, include_extras=True)
    defaults = {field.name: field.default for field in msgspec.structs.fields(settings)}
    rows = {}
    for name, hint in hints.items():
        if get_origin(hint) is Annotated:
            kind, flag = get_args(hint)
            rows[name] = Setting(name, kind, defaults[name], flag)
    return rows


_BOOLEANS: Final[Mapping[str, bool]] = {
    "true": True, "on": True, "1": True, "false": False, "off": False, "0": False
}  # fmt: skip


def _boolean(value: object, flag: Flag, label: str) -> bool:
    answer = _BOOLEANS.get(str(value).lower())
    if answer is None:
        raise SettingsError(
            f"{label}: invalid value for bool option: {value!r}, expected true, false, on, off, 1 or 0"
        )
    return answer


def _integer(value: object, flag: Flag, label: str) -> int:
    if flag.counts and str(value).lower() in ("true", "false"):
        return int(_boolean(value, flag, label))
    try:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return int(_within(int(value), flag, label, "an integer"))
    except ValueError:
        pass
    raise SettingsError(f"{label}: expected an integer, got {value!r}")


def _number(value: object, flag: Flag, label: str) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool) and isfinite(float(value)):
            return _within(float(value), flag, label, "a number")
    except ValueError:
        pass
    raise SettingsError(f"{label}: expected a number, got {value!r}")


def _within(number: float, flag: Flag, label: str, noun: str) -> float:
    low, high = flag.low, flag.high
    if (low is None or number >= low) and (high is None or number <= high):
        return number
    if high is None:
        raise SettingsError(f"{label}: expected {noun} of at least {low:g}, got {number}")
    raise SettingsError(f"{label}: expected {noun} from {low:.12g} to {high:.12g}, got {number}")


def _text(value: object, flag: Flag, label: str) -> str:
    if isinstance(value, bool) and "off" in flag.choices and not value:
        return "off"  # YAML reads a bare `off` as false
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise SettingsError(f"{label}: expected a string, got {value!r}")
    if flag.pair and value:
        _check_pair(str(value), flag.pair, label)
    if not flag.choices:
        return str(value)
    for choice in flag.choices:
        if str(value).lower() == choice.lower():
            return choice
    raise SettingsError(f"{label}: expected one of {', '.join(flag.choices)}, got {value!r}")


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


_READERS: Final[dict[type, Callable[[object, Flag, str], Any]]] = {
    bool: _boolean, int: _integer, float: _number, str: _text
}  # fmt: skip


def pairs(
    entries: tuple[str, ...], format_error: Callable[[str], str], named: bool
) -> dict[str, dict[str, str]]:
    """Split `[name,]key=value` entries, as `--backend-config` and its kind take them.

    Args:
        entries: the raw values; later ones win.
        format_error: the text for an entry of another form.
        named: whether the name must be there; without one, entries are found under "".

    Raises:
        SettingsError: an entry of another form.
    """
    found: dict[str, dict[str, str]] = {}
    for entry in entries:
        head, equals, value = entry.partition("=")
        name, comma, key = head.partition(",")
        if not comma:
            name, key = "", head
        if not (equals and key and value) or ((named or comma) and not name):
            raise SettingsError(format_error(entry))
        found.setdefault(name, {})[key] = value
    return found
