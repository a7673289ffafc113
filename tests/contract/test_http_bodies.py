"""HTTP request bodies that are not plain JSON: raw data, compressed, in very many chunks."""

import gzip
import json
import socket
import zlib
from collections.abc import Callable

import pytest

from tests.contract.conftest import Addresses
from tests.contract.wire import (
    BATCH,
    JSON_LENGTH,
    TIMEOUT_S,
    Wire,
    binary_request,
    check_alive,
    check_refusal,
)

Code = Callable[[bytes], bytes]

RAW = {
    "more than one input": (
        "simple",
        bytes(64),
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'simple' model "
        "configuration",
    ),
    "strings of variable number": (
        "simple_identity",
        b"abc",
        "For BYTE datatype raw input 'INPUT0', the model must have input shape [1]",
    ),
}


@pytest.mark.parametrize(("model", "data", "text"), RAW.values(), ids=RAW.keys())
def test_refused_raw_binary_request(wire: Wire, model: str, data: bytes, text: str) -> None:
    check_refusal(wire.infer(model, b"", data, json_length=0), 400, f"[request id: <id_unknown>] {text}")
    check_alive(wire)


@pytest.mark.parametrize(
    ("coding", "pack", "unpack"),
    [("gzip", gzip.compress, gzip.decompress), ("deflate", zlib.compress, zlib.decompress)],
)
def test_compressed_both_ways(wire: Wire, coding: str, pack: Code, unpack: Code) -> None:
    """The length of the JSON part is that before compression, in both directions."""
    header = json.dumps({**binary_request(), "parameters": {"binary_data_output": True}}).encode()
    headers = {
        "Content-Encoding": coding,
        "Accept-Encoding": f"identity;q=0.1, {coding};q=0.5",
        JSON_LENGTH: str(len(header)),
    }
    answer = wire.send("POST", "/v2/models/simple/infer", pack(header + BATCH * 2), headers)
    assert (answer.status, answer.headers["Content-Encoding"]) == (200, coding)
    assert unpack(answer.body)[answer.json_length :] == BATCH * 2


COMPRESSED = {
    "another coding": ("br", b"x", 501, "Unsupported compression type"),
    "a bomb": (
        "gzip",
        gzip.compress(bytes(80 << 20), 1),
        400,
        "Decompressed data size exceeds the maximum allowed value of 67108864 bytes. "
        "Use --http-max-input-size to increase the limit.",
    ),
    "nothing": ("gzip", b"", 400, "nothing to be decompressed"),
}


@pytest.mark.parametrize(("coding", "body", "status", "text"), COMPRESSED.values(), ids=COMPRESSED.keys())
def test_refused_compression(wire: Wire, coding: str, body: bytes, status: int, text: str) -> None:
    answer = wire.send("POST", "/v2/models/simple/infer", body, {"Content-Encoding": coding})
    check_refusal(answer, status, text)
    assert (answer.headers["Accept-Encoding"] == "gzip, deflate") is (status == 501)
    check_alive(wire)


def test_too_many_chunks(server: Addresses) -> None:
    head = b"POST /v2/models/simple/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    host, port = server.http.split(":")
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(head + b"1\r\n \r\n" * 65537)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(
        b'{"error":"Chunked request body exceeds maximum of 65536 non-empty chunks. '
        b'Send fewer or larger HTTP chunks."}'
    )
