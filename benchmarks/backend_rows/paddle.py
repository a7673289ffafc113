"""A small model by the backend paddle and by Paddle alone, a process each."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.backend_rows.own_process import dense_rows
from benchmarks.backends import Row


def rows() -> Iterable[Row]:
    """Return the only row."""
    return dense_rows("paddle", "Paddle")
