"""Feedback as a client sends it: in requests of some records each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

MAX_RECORDS: Final = 1000
MAX_BYTES: Final = 1 << 20
"""Of one request: those that the server refuses, or gets twice, are few."""

Records = Sequence[Mapping[str, Any]]


def in_requests(records: Iterable[Mapping[str, Any]]) -> Iterator[Records]:
    """Yield the records of one request after the other; they are read as they are needed."""
    found: list[Mapping[str, Any]] = []
    size = 0
    for record in records:
        plain = {name: _plain(value) for name, value in record.items()}
        length = len(json.dumps(plain))
        if found and (len(found) >= MAX_RECORDS or size + length > MAX_BYTES):
            yield found
            found, size = [], 0
        found.append(plain)
        size += length
    if found:
        yield found


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays and numbers of numpy too."""
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
