"""The settings of a server as flags, for people who look at it: without what is secret in them."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from app.settings.flag.flags import Setting

_SECRET: Final = ("restricted", "cache_config", "trace_config", "backend_config")
"""Parts of names of flags whose values may have passwords or keys in them."""
_SCALARS: Final = (str, int, float, bool)


class InEffect(NamedTuple):
    """A flag and its value; `changed` says that it is not the default."""

    flag: str
    value: str
    changed: bool
    help: str


def in_effect(settings: msgspec.Struct, table: dict[str, Setting]) -> Iterator[InEffect]:
    """Return the flags of `table` whose values `settings` has as they are, in its order."""
    for name, row in table.items():
        found = _at(settings, row.path)
        if found is _MISSING or any(word in name for word in _SECRET):
            continue
        value = _text(found * row.flag.per_unit if row.flag.per_unit != 1 else found)
        if value is not None:
            yield InEffect(f"--{name.replace('_', '-')}", value, value != _text(row.default), row.flag.help)


_MISSING: Final = object()


def _at(settings: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        settings = getattr(settings, name, _MISSING)
    return settings


def _text(value: Any) -> str | None:
    """Return a value as on a command line; None for one that is made of others."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, _SCALARS):
        return str(value)
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return ", ".join(value)
    return None
