"""A request that a newcomer can paste: curl for one of the models that are ready."""

import json
from collections.abc import Iterable
from math import prod
from typing import Any, Final
from urllib.parse import quote

from app.core.config.model_config import TensorSpec
from app.routing.table import RoutingTable, VersionEntry

_MOST_ELEMENTS: Final = 16
_VALUES: Final[dict[str, Any]] = {"BOOL": True, "BYTES": "hello"}
"""Values of an element; 1 for any other data type, since few models divide by it."""
_NOT_IN_JSON: Final = frozenset({"", "FP16", "BF16"})


def first_request(table: RoutingTable, curl: str, url: str) -> str:
    """Return a curl command for the ready model with the smallest numbers as inputs; "" when there is none.

    Args:
        table: what is served.
        curl: the command, with what every request needs.
        url: the server's address, such as http://localhost:8000.
    """
    usable = [entry for entry in table.ready if _elements(entry)]
    if not usable:
        return ""
    entry = min(usable, key=lambda each: (_has_text(each), _elements(each), each.model))
    body = json.dumps({"inputs": [_tensor(spec) for spec in _needed(entry)]})
    return f"{curl} {url}/v2/models/{quote(entry.model)}/infer -d '{body}'"


def _elements(entry: VersionEntry) -> int:
    """Return the number of values in the smallest request of a model; 0 when it cannot be written here."""
    needed = _needed(entry)
    total = sum(prod(_shape(spec)) for spec in needed)
    by_json = all(spec.datatype not in _NOT_IN_JSON for spec in needed)
    alone = not (entry.decoupled or entry.keeps_sequences)
    return total if by_json and alone and total <= _MOST_ELEMENTS * len(needed) else 0


def _needed(entry: VersionEntry) -> list[TensorSpec]:
    return [spec for spec in entry.inputs.values() if not spec.optional]


def _has_text(entry: VersionEntry) -> bool:
    """Whether an input is text, of which a model may want anything (a picture, say)."""
    return any(spec.datatype == "BYTES" for spec in _needed(entry))


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    shape = _shape(spec)
    data = [_VALUES.get(spec.datatype, 1)] * prod(shape)
    return {"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data}


def _shape(spec: TensorSpec) -> list[int]:
    return list(_smallest(spec.shape))


def _smallest(shape: Iterable[int]) -> Iterable[int]:
    return (max(1, size) for size in shape)
