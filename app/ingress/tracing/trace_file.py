"""Trace files in Triton's format: one JSON array of small objects, `triton_trace_summary` reads it."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Final

from app.core.tensors import RegionSlice, Tensor

Stamp = tuple[str, int]
"""An activity and its time, `time.monotonic_ns`."""

_FLOATS: Final = ("FP16", "FP32", "FP64")


def encode_header(number: int, model: str, version: str, request_id: str, parent: int = 0) -> dict[str, Any]:
    """Return the object that names the traced model; `parent` is the trace that made the call, 0 for none."""
    header: dict[str, Any] = {"id": number, "model_name": model, "model_version": int(version or -1)}
    if request_id:
        header["request_id"] = request_id
    return {**header, "parent_id": parent} if parent else header


def encode_stamp(number: int, stamp: Stamp) -> dict[str, Any]:
    """Return the object of one activity."""
    return {"id": number, "timestamps": [{"name": stamp[0], "ns": stamp[1]}]}


def encode_tensor(number: int, activity: str, tensor: Tensor) -> dict[str, Any]:
    """Return the object of one tensor, with its elements printed as Triton prints them."""
    shape = ",".join(map(str, tensor.shape))
    described = {"name": tensor.name, "data": _elements(tensor), "shape": shape, "dtype": tensor.datatype}
    return {"id": number, "activity": activity, "tensor": described}


def _elements(tensor: Tensor) -> str:
    if isinstance(tensor.data, RegionSlice) or not len(tensor.data):
        return ""
    if tensor.datatype == "BF16":  # numpy has no such type
        return ""
    elements = tensor.array().ravel().tolist()
    if tensor.datatype == "BYTES":
        return ",".join(f'"{element.decode(errors="replace")}"' for element in elements)
    if tensor.datatype in _FLOATS:
        return ",".join(f"{element:g}" for element in elements)
    return ",".join(str(int(element)) for element in elements)


def encode_objects(objects: Iterable[dict[str, Any]]) -> bytes:
    """Encode objects as a JSON array without its brackets."""
    return b",".join(json.dumps(each, separators=(",", ":")).encode() for each in objects)


class TraceFile:
    """A trace file and its numbered siblings. Not thread-safe.

    Unlike Triton's, the file is complete JSON after every save.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._next = 0
        self._file: BinaryIO | None = None

    def save(self, traces: Sequence[bytes], numbered: bool) -> None:
        """Write encoded traces to the next numbered file, or append them to the one without a number.

        Raises:
            OSError: the file cannot be written.
        """
        text = b",".join(traces)
        if numbered:
            path = f"{self._path}.{self._next}"
            self._next += 1
            with open(path, "wb") as file:
                file.write(b"[" + text + b"]")
        elif self._file is None:
            self._file = open(self._path, "wb")  # noqa: SIM115 - stays open until `close`
            self._add(b"[" + text)
        else:
            self._file.seek(-1, 2)
            self._add(b"," + text)

    def _add(self, text: bytes) -> None:
        assert self._file is not None
        self._file.write(text + b"]")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
