"""Request bodies as they come: in pieces, in chunks, compressed."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import numpy as np
import pytest

from app.transport.memory.arena import find_slab
from tests.unit.app.ingress.http_peer import (
    INFER,
    Run,
    binary_infer,
    fronted,
    infer_document,
    json_infer,
    request,
)
from tests.waiting import until


def test_request_arrives_in_pieces_of_any_size(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            data = binary_infer(np.ones((1, 4), np.float32))
            for size in (1, 7, len(data) - 1):
                for start in range(0, len(data), size):
                    await peer.send(data[start : start + size])
                    await asyncio.sleep(0)
                assert (await peer.response())[0] == 200

    run(scenario())


def test_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            requests = [json_infer(id=str(n)) if n % 3 else request("/v2/nothing") for n in range(300)]
            await peer.send(b"".join(requests))
            for number in range(300):
                status, _, body = await peer.response()
                found = json.loads(body)
                assert found == {"error": "Not Found"} if number % 3 == 0 else found["id"] == str(number)
                assert status == (200 if number % 3 else 404)

    run(scenario())


def test_pipelined_long_bodies(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            array = np.random.default_rng(1).random((1, 100_000), np.float32)
            sending = asyncio.create_task(peer.send(binary_infer(array) * 3))
            for _ in range(3):
                assert (await peer.response())[2].endswith(array.tobytes())
            await sending

    run(scenario())


def test_long_and_short_bodies_on_one_connection(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for size in (100_000, 4, 100_000, 3_000, 20_000, 1_000_000, 4):
                array = np.random.default_rng(size).random((1, size), np.float32)
                status, _, body = await peer.ask(binary_infer(array))
                assert (status, body[-array.nbytes :]) == (200, array.tobytes())
                assert json.loads((await peer.ask(json_infer(id=str(size))))[2])["id"] == str(size)

    run(scenario())


def test_tensors_of_a_long_body_can_be_lent(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            for size in (100_000, 200_000, 100_000):
                front.fake.hold = True
                await peer.send(binary_infer(np.ones((1, size), np.float32)))
                await until(lambda: front.fake.held)
                inferred, sink = front.fake.held.pop()
                assert find_slab(inferred.inputs[0].data) is not None
                sink(front.fake.answer(inferred))
                assert (await peer.response())[0] == 200

    run(scenario())


def chunked(path: str, body: Any, size: int, *headers: str) -> Any:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", *headers, "", ""]
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return "\r\n".join(lines).encode() + chunks + b"0\r\n\r\n"


def test_chunked_request_bodies(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            body = json.dumps(infer_document([1.0] * 100)).encode()
            for size in (1, 100, 10_000):
                status, _, answer = await peer.ask(chunked(INFER, body, size))
                assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [1.0] * 100)
            raw = chunked(INFER, np.ones(8, np.float32).tobytes(), 5, "Inference-Header-Content-Length: 0")
            assert (await peer.ask(raw))[2].endswith(np.ones(8, np.float32).tobytes())

    run(scenario())


def test_too_many_chunks_are_refused(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            status, _, body = await peer.ask(chunked(INFER, b" " * 65537, 1))
            assert (status, json.loads(body)["error"]) == (
                400,
                "Chunked request body exceeds maximum of 65536 non-empty chunks. "
                "Send fewer or larger HTTP chunks.",
            )
            assert await peer.at_end()

    run(scenario())


def test_expect_continue(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(max_body_bytes=1000) as front:
            peer = await front.connect()
            data = json_infer().replace(b"Host: localhost", b"Host: localhost\r\nExpect: 100-continue")
            head, _, body = data.partition(b"\r\n\r\n")
            assert (await peer.ask(head + b"\r\n\r\n"))[0] == 100
            assert (await peer.ask(body))[0] == 200
            long = b"POST /v2 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n"
            assert (await peer.ask(long))[0] == 413

    run(scenario())


@pytest.mark.parametrize(
    ("encoding", "pack", "unpack"),
    [
        ("gzip", gzip.compress, gzip.decompress),
        ("deflate", zlib.compress, zlib.decompress),
    ],
)
def test_compression(run: Run, encoding: str, pack: Any, unpack: Any) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            plain = binary_infer(np.ones((1, 500), np.float32))
            head, _, body = plain.partition(b"\r\n\r\n")
            header_length = [line for line in head.decode().split("\r\n") if "Inference" in line]
            coding = [f"Content-Encoding: {encoding}", f"Accept-Encoding: {encoding};q=0.5"]
            status, headers, answer = await peer.ask(request(INFER, pack(body), *header_length, *coding))
            assert (status, headers["content-encoding"]) == (200, encoding)
            length = int(headers["inference-header-content-length"])
            assert unpack(answer)[length:] == np.ones(500, np.float32).tobytes()

    run(scenario())


def test_malformed_compressed_requests_are_refused(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(settings={"max_input_size": 1000}) as front:
            peer = await front.connect()
            status, headers, body = await peer.ask(request(INFER, b"x", "Content-Encoding: br"))
            assert (status, json.loads(body)) == (501, {"error": "Unsupported compression type"})
            assert headers["accept-encoding"] == "gzip, deflate"
            bomb = gzip.compress(bytes(10 << 20))
            status, _, body = await peer.ask(request(INFER, bomb, "Content-Encoding: gzip"))
            assert status == 400
            assert json.loads(body)["error"].startswith("Decompressed data size exceeds the maximum allowed")
            assert (await peer.ask(request(INFER, b"junk", "Content-Encoding: gzip")))[0] == 400

    run(scenario())
