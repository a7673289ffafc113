"""The names of settings in a request: tritonserver ignores those that it does not know, and answers 200."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from app.core.errors import invalid_arg


def settings_of(document: Any) -> dict[str, Any]:
    """Return the settings of a JSON document.

    Raises:
        InferError: INVALID_ARG if it is no object.
    """
    if not isinstance(document, dict):
        raise invalid_arg("settings are a JSON object of names and values")
    return document


def check_names(kind: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse the first name that nothing is changed by: a misspelt one would pass for a success.

    Args:
        kind: what the names stand for, such as "log setting".
        given: the names in a request.
        known: those that change something.

    Raises:
        InferError: INVALID_ARG.
    """
    for name in given:
        if name not in known:
            meant = get_close_matches(name, known, 1)
            hint = f"did you mean '{meant[0]}'?" if meant else f"expected one of {', '.join(known)}"
            raise invalid_arg(f"unknown {kind} '{name}'; {hint}")
