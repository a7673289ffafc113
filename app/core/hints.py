"""The way out of an error, behind Triton's text for it, which stays as it is."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Final

from app.core.errors import shortened

MARK: Final = "Hint: "
"""Begins what is not Triton's of a text."""
_MAX_NAME: Final = 128
_MAX_NAMES: Final = 16
_SEARCHED: Final = 512
"""Names among which a similar one is looked for: that takes milliseconds for thousands."""


def hinted(text: str, hint: str) -> str:
    """Return an error's text with a hint behind it, if there is one."""
    if not hint:
        return text
    return f"{text}{'' if text.endswith(' ') else ' '}{MARK}{hint}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean '...'?" for a name that resembles a known one, otherwise ""."""
    if len(name) > _MAX_NAME:
        return ""
    by_lower = {each.lower(): each for each in islice(known, _SEARCHED)}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean '{by_lower[close[0]]}'?" if close else ""


def named(names: Iterable[str]) -> str:
    """Return names in quotes, of many the first."""
    shown = [f"'{shortened(name, _MAX_NAME)}'" for name in islice(names, _MAX_NAMES + 1)]
    return ", ".join([*shown[:_MAX_NAMES], *(["..."] if len(shown) > _MAX_NAMES else [])])
