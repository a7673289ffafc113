"""Which recorded requests calibrate a candidate, and which check it. Pure, but for reading the tape."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from nereid_client.comparison.acceptance import rows_needed
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor
from nereid_client.tape.where import Where

SURE: Final = 0.999
"""The confidence of which it is said beforehand whether there are rows enough: 1,379 for 99.5%."""
_FLOATS: Final = ("FP16", "FP32", "FP64", "BF16")
_MOST_CLASSES: Final = 10_000


class OptimiseError(Exception):
    """Something that the user has to change; the text says what."""


class Chosen(msgspec.Struct, frozen=True):
    """Rows of a tape, by their keys, in the order of their arrival.

    Attributes:
        calibration: of the older half.
        check: of the newer half.
        classes: how many classes were answered; 0 where the tape has no answers with classes.
        skipped: rows that are used for nothing, by the reason.
        digest: of all keys: other rows are another search.
    """

    calibration: tuple[str, ...]
    check: tuple[str, ...]
    classes: int = 0
    skipped: Mapping[str, int] = {}
    digest: str = ""


class _Seen(msgspec.Struct):
    """A row that may be used: its key, and the class of its answer, -1 for none."""

    key: str
    kind: int


def choose(tape: Tape, model: str, version: str, where: Where | None, calibration: int, check: int) -> Chosen:
    """Choose rows of a model: without duplicates, the classes of the answers in proportion.

    Args:
        tape: has them.
        model: its name.
        version: the version whose answers tell the classes.
        where: chooses among them.
        calibration, check: so many at most.

    Raises:
        OptimiseError: fewer than two rows can be used.
        TapeError: the tape cannot be read.
    """
    found, skipped = _usable(tape, model, version, where)
    if len(found) < 2:
        told = "; ".join(f"{number} times: {why}" for why, number in skipped.items())
        raise OptimiseError(
            f"'{tape.path}' has {len(found)} rows of '{model}' that can be used{': ' + told if told else ''}"
        )
    half = len(found) // 2
    older, newer = _few(found[:half], calibration), _few(found[half:], check)
    kinds = {each.kind for each in found} - {-1}
    keys = [each.key for each in (*older, *newer)]
    return Chosen(
        tuple(each.key for each in older),
        tuple(each.key for each in newer),
        len(kinds),
        dict(skipped),
        blake2b("\n".join(keys).encode(), digest_size=8).hexdigest(),
    )


def enough(check: int, agreement: float) -> str:
    """Return a sentence if so few rows can hardly show that so many answers agree; "" for enough."""
    needed = rows_needed(0, 1 - agreement, SURE)
    if check >= needed:
        return ""
    return (
        f"{check:,} rows check each candidate: {needed:,} without one that differs would show "
        f"{agreement:.4g} of agreement with a confidence of {SURE:.1%}, fewer leave more of them inconclusive"
    )


def _usable(tape: Tape, model: str, version: str, where: Where | None) -> tuple[list[_Seen], Counter[str]]:
    found: list[_Seen] = []
    skipped: Counter[str] = Counter()
    known: set[bytes] = set()
    for row in tape.rows(where, [model]):
        if why := _unusable(row):
            skipped[why] += 1
            continue
        content = _content(row)
        if content in known:
            skipped["the same inputs as an earlier one"] += 1
            continue
        known.add(content)
        found.append(_Seen(row.key, _kind(row, version)))
    return found, skipped


def _unusable(row: Row) -> str:
    if row.sequence_id:
        return "a step of a sequence"
    if row.failed:
        return "it failed"
    return row.why_not


def _content(row: Row) -> bytes:
    digest = blake2b(digest_size=16)
    for tensor in sorted(row.inputs, key=lambda each: each.name):
        digest.update(f"{tensor.name}\0{tensor.datatype}\0{tensor.shape}\0".encode())
        digest.update(tensor.data)
    return digest.digest()


def _kind(row: Row, version: str) -> int:
    """Return the class of the first answer that has classes; -1 for none."""
    if version and row.version != version:
        return -1
    outputs = (tensor for response in row.responses for tensor in response.outputs)
    return next((kind for tensor in outputs if (kind := _best(tensor)) >= 0), -1)


def _best(tensor: TapeTensor) -> int:
    if tensor.state != KEPT or tensor.datatype not in _FLOATS or not tensor.shape:
        return -1
    if not 2 <= tensor.shape[-1] <= _MOST_CLASSES:
        return -1
    try:
        values = tensor.array()
    except TapeError:
        return -1
    return int(np.argmax(values.reshape(-1, values.shape[-1])[0])) if values.size else -1


def _few(rows: Sequence[_Seen], most: int) -> list[_Seen]:
    """Return at most so many rows, of each class in proportion, by chance, the same ones each time."""
    if len(rows) <= most:
        return list(rows)
    by_kind: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        by_kind.setdefault(row.kind, []).append(place)
    chance = random.Random(0)
    spread: list[tuple[float, int]] = []
    for places in by_kind.values():
        chance.shuffle(places)
        offset = chance.random()  # or the first of every class would come before the second of any
        spread += [((number + offset) / len(places), place) for number, place in enumerate(places)]
    return [rows[place] for place in sorted(place for _, place in sorted(spread)[:most])]


def inputs_of(path: Path, model: str, keys: Sequence[str]) -> Iterator[tuple[str, dict[str, Array]]]:
    """Yield the inputs of rows by their keys, in the order of the tape.

    Raises:
        TapeError: the tape cannot be read.
    """
    wanted = frozenset(keys)
    for row in Tape(path).rows(lambda each: each.key in wanted, [model]):
        yield row.key, {tensor.name: _array(tensor) for tensor in row.inputs}


def _array(tensor: TapeTensor) -> Array:
    """Return values as an engine takes them: of BF16 the bit patterns."""
    if tensor.datatype == "BF16":
        return np.frombuffer(tensor.data, "<u2").reshape(tensor.shape)
    return tensor.array()


Array = npt.NDArray[Any]
