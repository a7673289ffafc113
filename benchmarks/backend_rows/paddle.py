"""A small model by the backend paddle and by Paddle alone, a process each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.backend_rows.own_process import bare, check_installed
from benchmarks.backends import Call, Row, served

_CONFIG = """
    name: "dense" backend: "paddle" max_batch_size: 8
    input { name: "x" data_type: TYPE_FP32 dims: 256 }
    output { name: "y" data_type: TYPE_FP32 dims: 10 }
    parameters { key: "num_threads" value { string_value: "1" } }
"""


def rows() -> Iterable[Row]:
    """Return the only row."""
    check_installed("paddle")
    yield Row("two layers of Paddle, 8 rows", _both)


def _both(folder: Path) -> tuple[Call, Call]:
    alone = bare("paddle", "bare_paddle.py", folder)
    return served(_CONFIG, folder, {"x": np.ones((8, 256), np.float32)}), alone
