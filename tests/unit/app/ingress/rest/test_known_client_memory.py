"""Requests with tensors in client memory, recognised beside Python's reading."""

import json
from typing import Any

import pytest

from tests.unit.app.ingress.http_peer import INFER, infer_document, request
from tests.unit.app.ingress.two_planes import Planes, alike

pytest.importorskip("app.native.extension")


def place(region: str, offset: int) -> dict[str, Any]:
    place = {"shared_memory_region": region, "shared_memory_byte_size": 64, "shared_memory_offset": offset}
    return {"parameters": place}


GIVEN = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", **place("in", 8)}
WANTED = [{"name": "OUTPUT0", **place("out", 0)}, {"name": "OUTPUT1"}]


def asked(*inputs: dict[str, Any], outputs: list[dict[str, Any]] = WANTED, identifier: str = "") -> bytes:
    """Return a request; its head is as long as those of clients are."""
    document = {"id": identifier, "inputs": inputs, "outputs": outputs}
    return request(INFER, json.dumps(document).encode(), "User-Agent: " + "a" * 40)


def inline(name: str, *values: float) -> dict[str, Any]:
    return {**infer_document(values)["inputs"][0], "name": name}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (asked(GIVEN, identifier="abc"), asked(GIVEN, identifier="d f")),
        (asked(GIVEN, inline("INPUT1", 1, 2)), asked(GIVEN, inline("INPUT1", 3, 4))),
        (asked(inline("INPUT0", 1.5, 2.5)), asked(inline("INPUT0", 0.1, -1e-7))),
        (asked(GIVEN, outputs=[], identifier="a"), asked(GIVEN, outputs=[], identifier="b")),
    ],
)
def test_requests_that_look_like_one_before(first: bytes, second: bytes) -> None:
    planes = Planes()
    first, second = alike(first, second)
    planes.learn(first)
    assert first != second and planes.ask(second)[1]


def test_another_place_is_read_too() -> None:
    planes = Planes()
    planes.learn(asked(GIVEN))
    assert planes.ask(asked({**GIVEN, **place("in", 9)}))[1]
