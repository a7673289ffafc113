"""Request headers that become request parameters, as tritonserver's `--*-header-forward-pattern` asks."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest

_CASE_SENSITIVE: Final = "(?-i)"
_RESERVED: Final = frozenset(
    {
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "priority",
        "timeout",
        "headers",
        "binary_data_output",
    }
)
_MAX_NAME: Final = 256
"""Characters of the longest name that is matched: what a pattern may cost grows with the name."""
_REMEMBERED: Final = 1024


class HeaderForwarder:
    """Picks the headers whose name a pattern is found in, without regard to case unless it says `(?-i)`.

    Args:
        pattern: a regular expression in what RE2's syntax and Python's have in common.

    Raises:
        ValueError: the pattern is no regular expression.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        sensitive = pattern.startswith(_CASE_SENSITIVE)
        try:
            compiled = re.compile(
                pattern.removeprefix(_CASE_SENSITIVE), re.NOFLAG if sensitive else re.IGNORECASE
            )
        except re.error as error:
            raise ValueError(f"'{pattern}' is not a regular expression: {error}") from None
        # Clients repeat their headers' names, so that the pattern is hardly ever tried on one twice.
        self._matches = lru_cache(_REMEMBERED)(
            lambda name: len(name) <= _MAX_NAME and compiled.search(name) is not None
        )

    def __reduce__(self) -> tuple[type["HeaderForwarder"], tuple[str]]:
        return HeaderForwarder, (self._pattern,)  # Settings are pickled; a cached function cannot be.

    def into(self, request: InferRequest, headers: Iterable[tuple[str, str]]) -> InferRequest:
        """Add the headers that match to a request's parameters; they win over those of the same name.

        Raises:
            InferError: INVALID_ARG for a header whose name is that of a parameter with a meaning of its own.
        """
        forwarded = {name: value for name, value in headers if self._matches(name)}
        if not forwarded:
            return request
        _refuse_reserved(forwarded)
        return replace(request, parameters={**request.parameters, **forwarded})


def _refuse_reserved(names: Iterable[str]) -> None:
    for name in names:
        plain = name.lower()
        if plain in _RESERVED or plain.startswith("triton_"):
            raise invalid_arg(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
