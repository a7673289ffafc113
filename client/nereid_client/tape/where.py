"""Chooses rows of a tape by conditions that a person types: `model=simple and latency_ms>50`."""

import operator
import re
import time
from collections.abc import Callable
from datetime import datetime
from math import isfinite
from typing import Any, Final

from nereid_client.tape.rows import Row, TapeError

Where = Callable[[Row], bool]
"""Returns whether a row is chosen."""

_TEXTS: Final[dict[str, Callable[[Row], Any]]] = {
    "id": lambda row: row.id,
    "key": lambda row: row.key,
    "model": lambda row: row.model,
    "version": lambda row: row.version,
    "token": lambda row: row.token,
    "ingress": lambda row: row.ingress,
    "sequence": lambda row: str(row.sequence_id) if row.sequence_id else "",
    "reason": lambda row: row.reason,
    "code": lambda row: next((each.code for each in row.responses if each.code), ""),
}
_NUMBERS: Final[dict[str, Callable[[Row], float]]] = {
    "latency_ms": lambda row: row.latency_ns / 1e6,
    "responses": lambda row: len(row.responses),
    "bytes": lambda row: row.nbytes,
    "priority": lambda row: row.priority,
}
_FACTS: Final[dict[str, Callable[[Row], bool]]] = {
    "failed": lambda row: row.failed,
    "replayable": lambda row: row.replayable,
    "redacted": lambda row: "redacted" in row.flags,
    "truncated": lambda row: "truncated" in row.flags,
    "omitted": lambda row: "omitted" in row.flags,
    "cancelled": lambda row: "cancelled" in row.flags,
}
_MOMENTS: Final = {"since": operator.ge, "until": operator.lt}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_OPERATORS: Final = {
    "=": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_CONDITION: Final = re.compile(
    r"""\s*(?P<no>not\s+|!\s*)?(?P<name>[a-z_]+)
    (?:\s*(?P<op>!=|>=|<=|=|<|>)\s*(?:'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<bare>[^\s,'"]+)))?
    \s*(?P<then>,|and\b|$)""",
    re.VERBOSE,
)
HELP: Final = (
    "conditions joined by 'and': "
    + ", ".join(f"{name}=TEXT" for name in _TEXTS)
    + ", "
    + ", ".join(f"{name}>NUMBER" for name in _NUMBERS)
    + ", since=TIME, until=TIME (2026-11-26T18:00, or 2h for two hours ago), "
    + ", ".join(_FACTS)
    + "; = != < <= > >=, `not failed`, texts with spaces or commas in quotes"
)
"""What a command's help says of its `--where`."""


def parse_where(*texts: str, now: float | None = None) -> Where:
    """Return what chooses the rows for which all conditions of all texts hold; all rows without any.

    Args:
        texts: conditions, joined by `and` or commas; `HELP` lists them.
        now: seconds since the epoch, from which durations count back; None for now.

    Raises:
        TapeError: a text cannot be understood; it says which part.
    """
    moment = time.time() if now is None else now
    found = [condition for text in texts for condition in _conditions(text, moment)]
    return lambda row: all(condition(row) for condition in found)


def _conditions(text: str, now: float) -> list[Where]:
    found, at, more = [], 0, bool(text.strip())
    while more:
        match = _CONDITION.match(text, at)
        if match is None:
            raise TapeError(f"--where: '{text[at:].strip()}' is not understood; {HELP}")
        found.append(_condition(match, now))
        at, more = match.end(), bool(match["then"])
    return found


def _condition(match: re.Match[str], now: float) -> Where:
    name, sign = match["name"], match["op"]
    value = next((each for each in (match["single"], match["double"], match["bare"]) if each is not None), "")
    if sign is None:
        chosen = _fact(name)
    elif name in _TEXTS and sign in ("=", "!="):
        chosen = _compared(_TEXTS[name], _OPERATORS[sign], value)
    elif name in _NUMBERS:
        chosen = _compared(_NUMBERS[name], _OPERATORS[sign], _number(name, value))
    elif name in _MOMENTS and sign == "=":
        chosen = _compared(lambda row: row.arrived_ns, _MOMENTS[name], _moment(name, value, now))
    else:
        raise TapeError(_unknown(name, sign))
    return (lambda row: not chosen(row)) if match["no"] else chosen


def _fact(name: str) -> Where:
    if name not in _FACTS:
        raise TapeError(_unknown(name, ""))
    return _FACTS[name]


def _compared(read: Callable[[Row], Any], compare: Callable[[Any, Any], Any], value: Any) -> Where:
    return lambda row: bool(compare(read(row), value))


def _unknown(name: str, sign: str) -> str:
    if name in _FACTS:
        return f"--where: '{name}' is either so or not: write `{name}` or `not {name}`"
    if name in _TEXTS or name in _MOMENTS or name in _NUMBERS:
        return f"--where: '{name}{sign}' is not understood; {HELP}"
    return f"--where: there is no '{name}'; {HELP}"


def _number(name: str, text: str) -> float:
    try:
        if isfinite(value := float(text)):
            return value
    except ValueError:
        pass
    raise TapeError(f"--where: '{name}' is compared with a number, not with '{text}'")


def _moment(name: str, text: str, now: float) -> int:
    """Return a moment in ns since the epoch; a time without a zone is local."""
    try:
        if text[-1:] in _UNITS:
            return int((now - float(text[:-1]) * _UNITS[text[-1]]) * 1e9)
        return int(datetime.fromisoformat(text).timestamp() * 1e9)
    except (ValueError, OverflowError):
        raise TapeError(
            f"--where: '{name}' is a time (2026-11-26T18:00) or a duration (30m, 2h, 7d), not '{text}'"
        ) from None
