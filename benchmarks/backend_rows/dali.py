"""JPEG files to the pixels a classifier wants, by the backend dali and by DALI alone.

Both are in a process of their own each or, where this Python has DALI, in this one (`environment=server`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from backends.registry.loading import ENVIRONMENT, SERVER
from benchmarks.backend_rows.own_process import bare, check_installed
from benchmarks.backends import Call, Row, served

_CONFIG = """
    name: "pictures" backend: "dali" max_batch_size: 8
    input { name: "ENCODED" data_type: TYPE_UINT8 dims: -1 allow_ragged_batch: true }
    output { name: "PIXELS" data_type: TYPE_FP32 dims: [3, 224, 224] }
    parameters { key: "num_threads" value { string_value: "1" } }
"""


def rows() -> Iterable[Row]:
    """Return a row for each number of pictures in a batch, and each place where DALI runs."""
    here = find_spec("nvidia") is not None and find_spec("nvidia.dali") is not None
    make, place = (_here, ", in this process") if here else (_apart, "")
    if not here:
        check_installed("dali")
    for count in (1, 8):
        yield Row(f"{count} JPEG of 640x480 to 224x224{place}", partial(make, count=count))


def _apart(folder: Path, count: int) -> tuple[Call, Call]:
    encoded = _pictures(folder, count)
    alone = bare("dali", "bare_dali.py", folder)
    return served(_CONFIG, folder, {"ENCODED": encoded}), alone


def _here(folder: Path, count: int) -> tuple[Call, Call]:
    from benchmarks.backend_rows.bare_dali import prepared

    encoded = _pictures(folder, count)
    alone = prepared(folder)
    return served(_CONFIG, folder, {"ENCODED": encoded}, settings={ENVIRONMENT: SERVER}), alone


def _pictures(folder: Path, count: int) -> np.ndarray[Any, Any]:
    """Write JPEG files into a folder; return their bytes, all of the same length."""
    encoded = []
    for index in range(count):
        squares = np.random.default_rng(0).integers(0, 256, (15, 20, 3), np.uint8)
        Image.fromarray(squares).resize((640, 480)).save(folder / f"{index}.jpg")
        encoded.append(np.fromfile(folder / f"{index}.jpg", np.uint8))
    return np.stack(encoded)
