"""Inputs and pauses of requests that a server has recorded on a tape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from nereid_client import Signature
from nereid_client.datatypes import Array
from nereid_client.tape.rows import Row, TapeError
from nereid_client.tape.segments import OPEN, SEALED
from nereid_client.tools.perf.generator.arrivals import Offsets, read_intervals
from nereid_client.tools.perf.options import Options, PerfError
from nereid_client.tools.tapes import opened

_ROWS: Final = 10_000
_BYTES: Final = 512 << 20
"""Of the inputs of a run: the newest rows that are not more."""


def is_tape(path: Path) -> bool:
    """Return whether a path is a segment of a tape, or a directory that has one."""
    if path.is_dir():
        return any(each.suffix in (OPEN, SEALED) for each in path.rglob("*"))
    return path.suffix in (OPEN, SEALED)


def recorded_inputs(path: Path, options: Options, signature: Signature) -> list[list[Mapping[str, Array]]]:
    """Return the inputs of the newest rows of a model, in the order of their arrival: of sequences whole.

    Args:
        options: with `cut`, or a batch above 1, each request has so many times the first row of its inputs.

    Raises:
        PerfError: the tape cannot be read, or has no such row that fits the model.
    """
    if options.batch > 1 and not signature.batched:
        raise PerfError("the model takes no batches: leave -b away")
    try:
        rows = _newest(path, options.model)
        found = _grouped(rows)
        steps = [[_step(row, options, signature) for row in each] for each in found]
    except (TapeError, OSError) as error:
        raise PerfError(f"--input-data: {error}") from None
    if not steps:
        raise PerfError(f"--input-data: '{path}' has no whole row of model '{options.model}'")
    return steps


def _newest(path: Path, model: str) -> list[Row]:
    """Return the newest rows that can be sent again, as many as there is room for."""
    found: list[Row] = []
    left = _BYTES
    with opened(path) as tape:
        for row in tape.rows(where=lambda row: row.replayable, models=[model], newest_first=True):
            left -= sum(tensor.nbytes for tensor in row.inputs)
            if left < 0 or len(found) >= _ROWS:
                break
            found.append(row)
    return found[::-1]


def _grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Return sequences from their beginning on, and other rows each alone."""
    found: list[list[Row]] = []
    begun: dict[int | str, list[Row]] = {}
    for row in rows:
        if not row.sequence_id:
            found.append([row])
        elif row.sequence_start:
            begun[row.sequence_id] = [row]
            found.append(begun[row.sequence_id])
        elif row.sequence_id in begun:
            begun[row.sequence_id].append(row)
    return found


def _step(row: Row, options: Options, signature: Signature) -> Mapping[str, Array]:
    """Return the inputs of a row."""
    arrays = {}
    for tensor in row.inputs:
        spec = signature.inputs.get(tensor.name)
        if spec is None or spec.datatype != tensor.datatype:
            has = f"{tensor.name} {tensor.datatype}{list(tensor.shape)}"
            raise PerfError(f"--input-data: row {row.key} has the input {has}, the model takes {signature}")
        array = tensor.array()
        if signature.batched and (options.batch > 1 or options.cut):
            array = np.repeat(array[:1], options.batch, axis=0)
        arrays[tensor.name] = array
    return arrays


def pauses(path: Path, model: str) -> Offsets:
    """Return the pauses before requests: of a file of them, or of the rows of a model on a tape.

    Raises:
        ValueError: there are none.
        OSError: the file cannot be read.
    """
    if not is_tape(path):
        return read_intervals(path)
    with opened(path) as tape:
        newest = islice(tape.rows(models=[model], newest_first=True, bodies=False), _ROWS)
        arrived = np.fromiter((row.arrived_ns for row in newest), np.int64)[::-1]
    between = np.diff(arrived)
    if not between.sum():
        raise ValueError(f"'{path}' has no two rows of model '{model}' that came at different times")
    return np.concatenate([[int(median(between.tolist()))], between])
