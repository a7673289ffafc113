"""Models by the backend paddle and by Paddle alone: a small one, and one that takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.backend_rows.own_process import Dense, dense_rows
from benchmarks.backends import Row


def rows() -> Iterable[Row]:
    """Return a row for each."""
    return dense_rows("paddle", "Paddle", (Dense(256, 2), Dense(1024, 12)))
