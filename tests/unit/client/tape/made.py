"""Rows and files of a tape for tests."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nereid_client.tape.records import MAGIC
from nereid_client.tape.rows import Row, TapeResponse, TapeTensor
from nereid_client.tape.segments import encode_row

SECOND = 10**9


def tensor(name: str, data: bytes | bytearray | memoryview = b"\0\0\x80?", **changed: Any) -> TapeTensor:
    made = TapeTensor(name, "FP32", (len(data) // 4,), data, len(data))
    return replace(made, **changed)


def row(number: int = 1, at_s: float = 100.0, **changed: Any) -> Row:
    answer = TapeResponse(5_000_000, (tensor("OUT"),), final=True)
    arrived = int(at_s * SECOND)
    made = Row(arrived, arrived, "ab", number, "simple", inputs=(tensor("IN"),), responses=(answer,))
    return replace(made, **changed)


def write(path: Path, rows: Iterable[Row]) -> Path:
    parts = [MAGIC, *(part for each in rows for part in encode_row(each))]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.writelines(parts)
    return path


def plain(each: Row) -> Row:
    """Return a row with its tensors as bytes, as rows are compared."""

    def taken(tensors: tuple[TapeTensor, ...]) -> tuple[TapeTensor, ...]:
        return tuple(replace(one, data=bytes(one.data)) for one in tensors)

    responses = tuple(replace(one, outputs=taken(one.outputs)) for one in each.responses)
    return replace(each, inputs=taken(each.inputs), responses=responses)
