"""Segments of a tape: files of rows, `*.open` while a server writes them and `*.tape` from then on.

A sealed one ends with a summary, and the byte at which that begins (8 bytes), so that nobody needs to read
the rows to know what there is.
"""

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from nereid_client.tape.records import FRAME_BYTES, MAGIC, ROW, SUMMARY, Place, RecordFile, encode
from nereid_client.tape.rows import ParameterTypes, Row, TapeError, TapeResponse, TapeTensor

OPEN: Final = ".open"
SEALED: Final = ".tape"
_END: Final = struct.Struct("<Q")


class _Tensor(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A tensor in a row's head; its `stored` bytes follow those of the one before it in the body."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    nbytes: int
    state: str
    stored: int


class _Response(msgspec.Struct, array_like=True, frozen=True, gc=False):
    offset_ns: int
    outputs: tuple[_Tensor, ...]
    code: str
    error: str
    final: bool


class _Head(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A row's head: the fields of `Row`, in this order. Newer versions append fields with a default."""

    arrived_ns: int
    monotonic_ns: int
    ingress: str
    number: int
    model: str
    asked_version: str
    version: str
    id: str
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool
    priority: int
    timeout_us: int
    token: str
    requested: tuple[str, ...]
    parameters: ParameterTypes
    inputs: tuple[_Tensor, ...]
    responses: tuple[_Response, ...]
    reason: str
    probability: float
    flags: tuple[str, ...]


_PLAIN: Final = tuple(name for name in _Head.__struct_fields__ if name not in ("inputs", "responses"))
_plain_values: Final = attrgetter(*_PLAIN)
_INPUTS: Final = _Head.__struct_fields__.index("inputs")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Head).decode

Described = tuple[str, str, tuple[int, ...], int, str, int]
"""A tensor in a row's head: name, datatype, shape, bytes that it had, state, bytes that are in the body."""


def encode_row(row: Row) -> list[Any]:
    """Return the buffers of a row, for `writev`; those of its tensors are the tensors' own.

    Raises:
        ValueError: names and parameters of the row take more than `MAX_HEAD`.
    """
    body: list[Any] = []
    inputs = _described(row.inputs, body)
    responses = [
        (each.offset_ns, _described(each.outputs, body), each.code, each.error, each.final)
        for each in row.responses
    ]
    plain = _plain_values(row)
    return encode_fields((*plain[:_INPUTS], inputs, responses, *plain[_INPUTS:]), body)


def encode_fields(fields: tuple[Any, ...], body: Sequence[Any]) -> list[Any]:
    """Return the buffers of a row that is given as the values of `Row`'s fields, in their order.

    Args:
        fields: tensors in them are `Described`, responses tuples of their fields.
        body: the data of these tensors, in their order, without that of empty ones.

    Raises:
        ValueError: the fields take more than `MAX_HEAD`.
    """
    return encode(ROW, fields[0], _encode(fields), body)


def _described(tensors: tuple[TapeTensor, ...], body: list[Any]) -> list[Described]:
    found = []
    for tensor in tensors:
        stored = len(tensor.data)
        if stored:
            body.append(tensor.data)
        found.append((tensor.name, tensor.datatype, tensor.shape, tensor.nbytes, tensor.state, stored))
    return found


def decode_row(file: RecordFile, place: Place, bodies: bool = True) -> Row:
    """Read a row; without `bodies`, the data of its tensors stays empty.

    Raises:
        TapeError: its bytes are not those that were written, or by another program.
    """
    try:
        head = _decode(file.head(place))
    except msgspec.MsgspecError as error:
        raise TapeError(f"'{file.path}' has no row at byte {place.at}: {error}") from None
    described = [*head.inputs, *(tensor for each in head.responses for tensor in each.outputs)]
    sizes = [tensor.stored for tensor in described]
    if any(size < 0 for size in sizes) or sum(sizes) != place.body:
        raise TapeError(f"'{file.path}' has no row at byte {place.at}: its tensors are not of its size")
    parts = _parts(file.body(place) if bodies and place.body else b"", sizes)
    values = {name: getattr(head, name) for name in _PLAIN}
    inputs = _tensors(head.inputs, parts)
    responses = tuple(
        TapeResponse(each.offset_ns, _tensors(each.outputs, parts), each.code, each.error, each.final)
        for each in head.responses
    )
    return Row(**values, inputs=inputs, responses=responses)


def _parts(body: bytes, sizes: list[int]) -> Iterator[memoryview]:
    view, at = memoryview(body), 0
    for size in sizes:
        yield view[at : at + size]
        at += size


def _tensors(described: tuple[_Tensor, ...], parts: Iterator[memoryview]) -> tuple[TapeTensor, ...]:
    return tuple(
        TapeTensor(each.name, each.datatype, each.shape, next(parts), each.nbytes, each.state)
        for each in described
    )


class Counted(msgspec.Struct):
    """What a segment has, as its writer counts it.

    Attributes:
        rows: number of rows.
        first_ns: the earliest arrival, since the epoch; 0 without rows.
        last_ns: the latest.
        models: number of rows by model.
        nbytes: bytes of the records.
    """

    rows: int = 0
    first_ns: int = 0
    last_ns: int = 0
    models: dict[str, int] = {}
    nbytes: int = 0

    def count(self, arrived_ns: int, model: str, nbytes: int) -> None:
        """Add a row."""
        self.rows += 1
        self.first_ns = min(self.first_ns, arrived_ns) if self.first_ns else arrived_ns
        self.last_ns = max(self.last_ns, arrived_ns)
        self.models[model] = self.models.get(model, 0) + 1
        self.nbytes += nbytes

    def add(self, other: "Counted") -> None:
        """Add other rows."""
        if not other.rows:
            return
        self.rows += other.rows
        self.first_ns = min(self.first_ns, other.first_ns) if self.first_ns else other.first_ns
        self.last_ns = max(self.last_ns, other.last_ns)
        self.nbytes += other.nbytes
        for model, rows in other.models.items():
            self.models[model] = self.models.get(model, 0) + rows


def encode_summary(counted: Counted, at: int) -> list[Any]:
    """Return the buffers that end a sealed segment whose records so far end at a byte."""
    return [*encode(SUMMARY, counted.last_ns, _encode(counted)), _END.pack(at)]


class Segment(msgspec.Struct, frozen=True):
    """A segment of a tape on disk.

    Attributes:
        path: of the file.
        sealed: no more rows come to it.
        counted: what it has.
        whole: False for a sealed one that has lost its end: nobody knows what it had.
    """

    path: Path
    sealed: bool
    counted: Counted
    whole: bool = True


def read_segment(path: Path) -> Segment:
    """Read what a segment has: from its end if it was sealed, else by going over it.

    Raises:
        TapeError: it is no segment.
        OSError: it cannot be read.
    """
    with RecordFile(path) as file:
        sealed, summary = path.suffix != OPEN, _summary(file)
        return Segment(path, sealed, summary or count(file), summary is not None or not sealed)


def count(file: RecordFile) -> Counted:
    """Count the rows of a file by going over it."""
    counted = Counted()
    for place in file.places():
        if place.kind == ROW:
            with suppress(TapeError):
                model = decode_row(file, place, bodies=False).model
                counted.count(place.moment, model, FRAME_BYTES + place.head + place.body)
    return counted


def lost(file: RecordFile, rows: int) -> int:
    """Return how many rows a sealed segment has had besides those that can be found; 1 if nobody knows.

    The records behind one whose frame or head is damaged cannot be found.
    """
    summary = _summary(file)
    return 1 if summary is None else max(summary.rows - rows, 0)


def _summary(file: RecordFile) -> Counted | None:
    """Return the summary at the end of a sealed segment; None if there is none."""
    tail = file.tail(_END.size)
    place = file.place(*_END.unpack(tail)) if len(tail) == _END.size else None
    if place is None or place.kind != SUMMARY or place.end + _END.size != file.size:
        return None
    try:
        return msgspec.msgpack.decode(file.head(place), type=Counted)
    except msgspec.MsgspecError:
        return None


def cut(path: str | os.PathLike[str]) -> Counted:
    """Cut a file off behind its last whole record, as a crash has left it; return what rows it has.

    Raises:
        TapeError: it is no file of a tape.
        OSError: it cannot be read or written.
    """
    with RecordFile(path) as file:
        whole, counted = file.whole(), count(file)
    if whole < file.size:
        os.truncate(path, whole)
    return counted


def seal(path: Path, counted: Counted) -> Path:
    """End a segment that nobody writes any more with its summary, and rename it; return its new path.

    Raises:
        OSError: it cannot be written; it is still an open one then.
    """
    with open(path, "r+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        at = end or len(MAGIC)
        summary = b"".join([*([] if end else [MAGIC]), *encode_summary(counted, at)])
        try:
            if file.write(summary) < len(summary):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        except OSError:
            file.truncate(end)
            raise
    sealed = path.with_suffix(SEALED)
    os.rename(path, sealed)
    return sealed
