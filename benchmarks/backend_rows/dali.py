"""JPEG files to the pixels a classifier wants, by the backend dali and by DALI alone, a process each."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.backend_rows.own_process import bare, check_installed
from benchmarks.backends import Call, Row, served

_CONFIG = """
    name: "pictures" backend: "dali" max_batch_size: 8
    input { name: "ENCODED" data_type: TYPE_UINT8 dims: -1 allow_ragged_batch: true }
    output { name: "PIXELS" data_type: TYPE_FP32 dims: [3, 224, 224] }
    parameters { key: "num_threads" value { string_value: "1" } }
"""


def rows() -> Iterable[Row]:
    """Return a row for each number of pictures in a batch."""
    check_installed("dali")
    for count in (1, 8):
        yield Row(f"{count} JPEG of 640x480 to 224x224", partial(_both, count=count))


def _both(folder: Path, count: int) -> tuple[Call, Call]:
    encoded = []
    for index in range(count):
        squares = np.random.default_rng(0).integers(0, 256, (15, 20, 3), np.uint8)
        Image.fromarray(squares).resize((640, 480)).save(folder / f"{index}.jpg")
        encoded.append(np.fromfile(folder / f"{index}.jpg", np.uint8))
    alone = bare("dali", "bare_dali.py", folder)
    return served(_CONFIG, folder, {"ENCODED": np.stack(encoded)}), alone
