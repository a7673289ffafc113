"""What is recorded on this node, for people: the models, rows by conditions, and a row in full."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from app.core.errors import internal, invalid_arg, not_found
from nereid_client.tape.reader import Tape
from nereid_client.tape.rows import KEPT, Row, TapeError, TapeTensor
from nereid_client.tape.segments import OPEN, SEALED
from nereid_client.tape.where import Where, parse_where

MOST_ROWS: Final = 200
"""Rows of one answer."""
MOST_VALUES: Final = 1000
"""Values of a tensor that are shown."""
_MOST_TEXT: Final = 10_000
"""Characters of one text that are shown."""
_LOOK_S: Final = 3.0
"""Seconds for which one answer looks through the tape; it says where it stopped."""
_LOOKED_BETWEEN: Final = 100
_T = TypeVar("_T")
_KEY: Final = re.compile(r"([0-9A-Za-z]{1,64})-[0-9]{1,18}")


class RecordedModel(msgspec.Struct, frozen=True):
    """A model of the tape: how many rows there are."""

    model: str
    rows: int


class RowSummary(msgspec.Struct, frozen=True):
    """A row without the values of its tensors; times in Unix seconds and milliseconds.

    Attributes:
        key: names it on the tape.
        inputs: names, data types and shapes, in words.
        answer: of the outputs, or the failure.
        why_not: why it cannot be sent again; "" if it can.
    """

    key: str
    arrived: float
    id: str
    model: str
    version: str
    asked_version: str
    latency_ms: float
    reason: str
    failed: bool
    token: str
    inputs: str
    answer: str
    flags: tuple[str, ...]
    why_not: str


class Looked(NamedTuple):
    """Rows, the newest first.

    Attributes:
        looked: at how many rows.
        before: where to go on, ns since the epoch; 0 at the end of the tape.
    """

    rows: list[RowSummary]
    looked: int
    before: int


class _Enough(Exception):
    """There is no more time, or there are enough rows."""


class TapeBrowser:
    """The tape of this node. One answer is read at a time, in another thread.

    Args:
        directory: of its segments.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._one = asyncio.Lock()

    async def models(self) -> list[RecordedModel]:
        """Return the models of which there are rows."""
        return await self._read(self._models)

    async def rows(self, model: str, conditions: str, most: int, before: int = 0) -> Looked:
        """Return the newest rows of a model, by its name for clients.

        Args:
            conditions: as `--where` of `nereid tape`.
            most: of the rows.
            before: only rows that arrived before, ns since the epoch; 0 for all.

        Raises:
            InferError: INVALID_ARG for conditions that cannot be read.
        """
        try:
            where = parse_where(conditions) if conditions.strip() else None
        except TapeError as error:
            raise invalid_arg(str(error)) from None
        return await self._read(lambda: self._rows(model, where, min(most, MOST_ROWS), before))

    async def row(self, model: str, key: str) -> Row:
        """Return a row of a model with its tensors.

        Raises:
            InferError: NOT_FOUND.
        """
        found = await self._read(lambda: self._row(model, key))
        if found is None:
            raise not_found(f"there is no row '{key}' of model '{model}' on this node's tape")
        return found

    async def _read(self, read: Callable[[], _T]) -> _T:
        async with self._one:
            try:
                return await asyncio.to_thread(read)
            except (TapeError, OSError) as error:
                raise internal(f"the tape cannot be read: {error}") from None

    def _models(self) -> list[RecordedModel]:
        rows = dict[str, int]()
        with Tape(self._directory) as tape:
            if self._paths("*"):
                for segment in tape.segments():
                    for name, number in segment.counted.models.items():
                        rows[name] = rows.get(name, 0) + number
        return [RecordedModel(name, number) for name, number in sorted(rows.items())]

    def _rows(self, model: str, where: Where | None, most: int, before: int) -> Looked:
        found: list[RowSummary] = []
        chooser = _Chooser(where, before)
        if not self._paths("*"):
            return Looked(found, 0, 0)
        with Tape(self._directory) as tape:
            try:
                for row in tape.rows(chooser, models=[model], newest_first=True, bodies=False):
                    found.append(summary(row))
                    if len(found) >= most:
                        raise _Enough
            except _Enough:
                return Looked(found, chooser.looked, chooser.last)
        return Looked(found, chooser.looked, 0)

    def _row(self, model: str, key: str) -> Row | None:
        named = _KEY.fullmatch(key)
        for path in self._paths(f"{named[1]}-*") if named else ():
            with Tape(path) as tape:
                for row in tape.rows(lambda each: each.key == key, models=[model]):
                    return row
        return None

    def _paths(self, pattern: str) -> list[Path]:
        return [path for path in self._directory.glob(pattern) if path.suffix in (OPEN, SEALED)]


class _Chooser:
    """Chooses rows, and stops when there is no more time.

    Attributes:
        looked: rows it has looked at.
        last: when the last one arrived.
    """

    def __init__(self, where: Where | None, before: int) -> None:
        self._where, self._before = where, before
        self._end = monotonic() + _LOOK_S
        self.looked, self.last = 0, 0

    def __call__(self, row: Row) -> bool:
        if self._before and row.arrived_ns >= self._before:
            return False
        if self.looked % _LOOKED_BETWEEN == 0 and monotonic() > self._end:
            raise _Enough
        self.looked, self.last = self.looked + 1, row.arrived_ns
        return self._where is None or self._where(row)


def summary(row: Row) -> RowSummary:
    """Return a row in a line."""
    return RowSummary(
        key=row.key,
        arrived=row.arrived_ns / 1e9,
        id=row.id,
        model=row.model,
        version=row.version,
        asked_version=row.asked_version,
        latency_ms=row.latency_ns / 1e6,
        reason=row.reason,
        failed=row.failed,
        token=row.token,
        inputs=" ".join(map(described, row.inputs)),
        answer=_answer(row),
        flags=row.flags,
        why_not=row.why_not,
    )


def _answer(row: Row) -> str:
    failure = next((f"{each.code}: {each.error}" for each in row.responses if each.code), "")
    if failure:
        return failure[:_MOST_TEXT]
    many = f"{len(row.responses)} responses: " if len(row.responses) > 1 else ""
    return many + " ".join(described(tensor) for each in row.responses[:1] for tensor in each.outputs)


def described(tensor: TapeTensor) -> str:
    """Return name, data type and shape of a tensor, and what is kept of it."""
    state = "" if tensor.state == KEPT else f" ({tensor.state})"
    return f"{tensor.name} {tensor.datatype}{list(tensor.shape)}{state}".replace(", ", ",")


def tensor_fields(tensor: TapeTensor, most: int | None = None) -> dict[str, Any]:
    """Return a tensor as JSON has it, with `most` values of it; bytes that are no UTF-8 are escaped.

    Of a tensor that was not kept there are no values. One whose bytes do not fit it has an `error`.
    """
    found: dict[str, Any] = {
        "name": tensor.name,
        "datatype": tensor.datatype,
        "shape": tensor.shape,
        "bytes": tensor.nbytes,
        "state": tensor.state,
    }
    if tensor.state == KEPT:
        try:
            values = tensor.array().reshape(-1)
        except TapeError as error:
            return {**found, "error": str(error)}
        found["data"] = [_plain(value, most) for value in values[:most].tolist()]
        if most is not None:
            found["values"] = len(values)
    return found


def _plain(value: Any, most: int | None) -> Any:
    if isinstance(value, bytes):
        text = value if most is None else value[:_MOST_TEXT]
        return text.decode(errors="backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def all_fields(tensors: Sequence[TapeTensor]) -> list[dict[str, Any]]:
    """Return tensors as pages show them."""
    return [tensor_fields(tensor, MOST_VALUES) for tensor in tensors]
