"""Forwarding of request headers as request parameters: tritonserver's `--*-header-forward-pattern`."""

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
"""Characters of the longest name that is matched: the cost of a pattern grows with the name."""
_CACHED_NAMES: Final = 1024


class HeaderForwarder:
    """Forwards headers whose names match a pattern somewhere; `(?-i)` in front makes it case-sensitive.

    Args:
        pattern: a regular expression in the common subset of RE2's syntax and Python's.

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
        # Clients repeat the names of their headers: the cache spares most searches.
        self._matches = lru_cache(_CACHED_NAMES)(
            lambda name: len(name) <= _MAX_NAME and compiled.search(name) is not None
        )

    def __reduce__(self) -> tuple[type["HeaderForwarder"], tuple[str]]:
        return HeaderForwarder, (self._pattern,)  # Settings are pickled; a cached function cannot be.

    def forward(self, request: InferRequest, headers: Iterable[tuple[str, str]]) -> InferRequest:
        """Return a request with the matching headers as parameters; they replace parameters of the same name.

        Raises:
            InferError: INVALID_ARG for a header with the name of a reserved parameter.
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
