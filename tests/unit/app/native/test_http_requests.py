"""The compiled `HttpRequests` by itself; how it reads requests is tested with the front."""

import sys
from typing import Any

import pytest

from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.protocol.http.compiled import JSON_TYPES, RESPONSE_HEADS
from app.protocol.http.json_tensors import encode_data

extension = pytest.importorskip("app.native.extension")

TYPES = (Tensor, RequestedOutput, InferRequest, InferResponse)
REST = ((), RESPONSE_HEADS, encode_data, 1000, 1000, 1000)


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Content-Length: 1", *lines, "", ""]).encode()


def reader() -> Any:
    return extension.HttpRequests(*TYPES, JSON_TYPES, *REST)


def test_other_types_are_refused() -> None:
    plain = type("Plain", (), {"name": ""})
    for other in (int, plain):
        with pytest.raises(TypeError, match=r"has no slot 'name', which app/native/http_requests\.c uses"):
            extension.HttpRequests(other, *TYPES[1:], JSON_TYPES, *REST)
    for arguments in ((), (*TYPES, None, *REST), (*TYPES, JSON_TYPES, ("text",), *REST[1:])):
        with pytest.raises(TypeError):
            extension.HttpRequests(*arguments)
    with pytest.raises(TypeError):
        extension.HttpRequests(*TYPES, JSON_TYPES, (), (b"", b""), encode_data, 1, 1, 1)


def test_heads_that_are_not_plain_are_not_known() -> None:
    requests = reader()
    assert requests.add(head("/a"), None, "m", "")
    assert not requests.add(head("/a", "no header"), None, "m", "")
    assert not requests.add(head("/" + "a" * 1100), None, "m", "")
    assert not requests.add(head("/a", "Content-Length: 1"), None, "m", "")
    assert not requests.add(head("/a")[:-2], None, "m", "")


def test_the_number_of_known_heads_is_bounded() -> None:
    requests, owner = reader(), object()
    for number in range(10_000):
        assert requests.add(head(f"/{number}"), owner, "m", "")
    assert sys.getrefcount(owner) < 4200


def test_the_bytes_of_known_heads_are_bounded() -> None:
    """Their owners keep them."""
    requests, owner = reader(), object()
    for number in range(3000):
        assert requests.add(head(f"/{number}", "X-Long: " + "a" * 8000), owner, "m", "")
    assert sys.getrefcount(owner) < 4 * (1 << 20) // 8000


def test_every_part_of_a_response_is_known() -> None:
    """One that was added might be lost otherwise."""
    assert Tensor.__struct_fields__ == ("name", "datatype", "shape", "data")
    known = {"model_name", "model_version", "outputs", "id", "parameters", "final", "failure"}
    assert set(InferResponse.__struct_fields__) - known == {"timestamps", "calls"}  # which no client sees
