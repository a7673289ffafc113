"""Compiled models by the backend tvm and by TVM alone: a small one, and one that takes milliseconds."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.backend_rows.own_process import Dense, dense_rows
from benchmarks.backends import Row


def rows() -> Iterable[Row]:
    """Return a row for each."""
    return dense_rows("tvm", "TVM", (Dense(256, 2), Dense(256, 10)), "tvm")
