"""A request that a newcomer can paste: a line of shell that asks a ready model by curl."""

import json
import shlex
from base64 import b64encode
from math import prod
from struct import pack
from typing import Any, Final
from urllib.parse import quote
from zlib import compress, crc32

from tritonclient.grpc import model_config_pb2 as mc

from app.core.config.model_config import TensorSpec
from app.routing.table import RoutingTable, VersionEntry

_MOST_ELEMENTS: Final = 16
"""Values of an input that are written as JSON; more are zeros behind it."""
_MOST_BYTES: Final = 64 << 20
_VALUES: Final[dict[str, Any]] = {"BOOL": True, "BYTES": "hello"}
"""Values of an element; 1 for any other data type, since few models divide by it."""
_NOT_IN_JSON: Final = frozenset({"", "FP16", "BF16"})
_PICTURE: Final = ("image", "img", "jpeg", "jpg", "png", "picture", "photo")
"""What is in the name of an input of text that is a file of a picture."""
_SIDE: Final = 64
"""Pixels of a side where a model leaves the size of a picture open, and of the picture that is sent."""
_SHOWN: Final = 400
"""Bytes shown of an answer that may be long."""
_CORRELATION_ID: Final = mc.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
_RATES: Final = frozenset({"sr", "sample_rate", "sampling_rate"})
_SAMPLE_RATE: Final = 16_000
_SAMPLES: Final = 512
"""Samples of sound, as a model that keeps sequences takes numbers of which the count is open."""


def first_request(table: RoutingTable, curl: str, url: str) -> str:
    """Return a curl command for the ready model with the smallest numbers as inputs; "" when there is none.

    Args:
        table: what is served.
        curl: the command, with what every request needs.
        url: the server's address, such as http://localhost:8000.
    """
    usable = [entry for entry in table.ready if _is_plain(entry)]
    if not usable:
        return ""
    entry = min(usable, key=lambda each: (_has_text(each), _elements(each), each.model))
    return request_of(entry, curl, url)


def request_of(entry: VersionEntry, curl: str, url: str, numbered: bool = False) -> str:
    """Return a line of shell that asks one model, with the least that its inputs accept; "" for none.

    Args:
        entry: a version.
        curl, url: see `first_request`.
        numbered: ask this version, not the one that requests without a version get.
    """
    needed = _needed(entry)
    version = f"/versions/{entry.version}" if numbered else ""
    at = f"{url}/v2/models/{quote(entry.model, safe='')}{version}"
    if len(needed) == 1 and _is_picture(needed[0]) and not entry.decoupled:
        raw = "-H 'Inference-Header-Content-Length: 0' --data-binary @-"
        return f"echo {_picture()} | base64 -d | {curl} {at}/infer {raw}{_cut(entry)}"
    if entry.decoupled:
        if not all(map(_in_json, needed)):
            return ""
        body = {spec.name: _one_or_all(_data(spec)) for spec in needed}
        return f"{curl} -N {at}/generate_stream -d {shlex.quote(json.dumps(body))}"
    return _inference(entry, needed, curl, at)


def _inference(entry: VersionEntry, needed: list[TensorSpec], curl: str, at: str) -> str:
    if entry.keeps_sequences:
        needed = [_as_sound(spec) for spec in needed]
    zeros = [spec for spec in needed if not _in_json(spec)]
    size = sum(prod(_shape(spec)) * spec.itemsize for spec in zeros)
    if size > _MOST_BYTES or any(not spec.itemsize for spec in zeros):
        return ""
    half = any(spec.datatype in _NOT_IN_JSON for spec in entry.outputs.values())
    parameters = _sequence(entry) | ({"binary_data_output": True} if half else {})
    tensors = {"inputs": [_tensor(spec) for spec in needed]}
    text = json.dumps(tensors | ({"parameters": parameters} if parameters else {}))
    answer = " --output answer.bin" if half else _cut(entry)
    if not zeros:
        return f"{curl} {at}/infer -d {shlex.quote(text)}{answer}"
    length = f"-H 'Inference-Header-Content-Length: {len(text)}' --data-binary @-"
    body = f"(printf %s {shlex.quote(text)}; head -c {size} /dev/zero)"
    return f"{body} | {curl} {at}/infer {length}{answer}"


def _sequence(entry: VersionEntry) -> dict[str, Any]:
    """Return the parameters of a sequence of one request; none for a model that keeps no sequences."""
    if not entry.keeps_sequences:
        return {}
    controls = entry.model_config.sequence_batching.control_input
    kinds = [control for each in controls for control in each.control]
    named = any(each.kind == _CORRELATION_ID and each.data_type == mc.TYPE_STRING for each in kinds)
    return {"sequence_id": "1" if named else 1, "sequence_start": True, "sequence_end": True}


def _as_sound(spec: TensorSpec) -> TensorSpec:
    if spec.datatype != "FP32" or len(spec.dims) > 2 or spec.dims[-1:] != (-1,):
        return spec
    return spec._replace(dims=(*spec.dims[:-1], _SAMPLES), shape=(*spec.shape[:-1], _SAMPLES))


def _is_plain(entry: VersionEntry) -> bool:
    """Return whether a request and its answer are short JSON."""
    alone = not (entry.decoupled or entry.keeps_sequences)
    needed = _needed(entry)
    by_json = all(spec.datatype not in _NOT_IN_JSON for spec in needed)
    return bool(_elements(entry)) and alone and by_json and _elements(entry) <= _MOST_ELEMENTS * len(needed)


def _elements(entry: VersionEntry) -> int:
    """Return the number of values in the smallest request of a model."""
    return sum(prod(_shape(spec)) for spec in _needed(entry))


def _needed(entry: VersionEntry) -> list[TensorSpec]:
    return [spec for spec in entry.inputs.values() if not spec.optional]


def _has_text(entry: VersionEntry) -> bool:
    """Whether an input is text, of which a model may want anything (a picture, say)."""
    return any(spec.datatype == "BYTES" for spec in _needed(entry))


def _in_json(spec: TensorSpec) -> bool:
    return spec.datatype not in _NOT_IN_JSON and prod(_shape(spec)) <= _MOST_ELEMENTS


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = _shape(spec)
    head = {"name": spec.name, "shape": shape, "datatype": spec.datatype}
    if _in_json(spec):
        return {**head, "data": _data(spec)}
    return {**head, "parameters": {"binary_data_size": prod(shape) * spec.itemsize}}


def _data(spec: TensorSpec) -> list[Any]:
    count = prod(_shape(spec))
    if spec.datatype == "BYTES" and count > 1:  # rather numbers than texts, and then they must be some
        return ["1"] * count
    rate = "INT" in spec.datatype and spec.name.lower() in _RATES
    return [_SAMPLE_RATE if rate else _VALUES.get(spec.datatype, 1)] * count


def _one_or_all(data: list[Any]) -> Any:
    return data[0] if len(data) == 1 else data


def _shape(spec: TensorSpec) -> list[int]:
    """Return the smallest shape: 1 for what is open, and a side of a picture for height and width."""
    batch = [1] * (len(spec.shape) - len(spec.dims))
    pictures = len(spec.dims) >= 3 and spec.datatype != "BYTES"
    side = _SIDE if pictures and spec.dims.count(-1) >= 2 else 1
    return [*batch, *(size if size > 0 else side for size in spec.dims)]


def _is_picture(spec: TensorSpec) -> bool:
    one = spec.datatype == "BYTES" and prod(_shape(spec)) == 1
    return one and any(word in spec.name.lower() for word in _PICTURE)


def _cut(entry: VersionEntry) -> str:
    """Return what shows the beginning alone of an answer, where it may be long."""
    shapes = [spec.shape for spec in entry.outputs.values()]
    least = sum(prod(max(1, size) for size in shape) for shape in shapes)
    return f" | head -c {_SHOWN}" if least > _MOST_ELEMENTS * max(1, len(shapes)) else ""


def _picture() -> str:
    """Return a white PNG as base64."""
    rows = (b"\0" + b"\xff" * (3 * _SIDE)) * _SIDE
    parts = (
        (b"IHDR", pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)),
        (b"IDAT", compress(rows, 9)),
        (b"IEND", b""),
    )
    chunks = (pack(">I", len(data)) + kind + data + pack(">I", crc32(kind + data)) for kind, data in parts)
    return b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
