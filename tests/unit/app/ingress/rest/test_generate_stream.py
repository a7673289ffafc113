"""generate_stream: an event for each response, and what ends a stream."""

import asyncio
import itertools
import json
from typing import Any

import numpy as np
import pytest

from app.core.tensors import InferResponse, Tensor
from app.ingress.net.slow_clients import SendBufferLimit
from tests.unit.app.ingress.http_peer import Run, request
from tests.unit.app.ingress.rest.generate_requests import (
    BROKEN,
    EVENTS,
    GENERATE,
    LAST,
    LATE,
    STREAM,
    asked,
    asking,
    chunk,
    decoupled,
    events,
    head,
    numbered,
    numbers,
    sized,
    told,
)
from tests.waiting import let_run, until


def test_event_is_sent_when_its_response_arrives(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(0))
            assert (await head(peer))[0] == 200
            for number in range(1, 4):
                assert json.loads((await chunk(peer))[6:])["N"] == number - 1
                model.answer(numbered(number))
            model.answer(LAST)
            assert numbers(await events(peer)) == [3]

    run(scenario())


def test_final_response_with_outputs_is_an_event(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(InferResponse("identity", "1", parameters={"tokens": 3}))
            await head(peer)
            assert await events(peer) == [{"model_name": "identity", "model_version": "1", "tokens": 3}]

    run(scenario())


def test_the_first_response_decides_the_status(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            for error, wanted in ((BROKEN, 400), (LATE, 503)):
                (await asked(front, peer, asking(STREAM))).answer(told(error))
                status, headers = await head(peer)
                assert (status, headers["content-type"]) == (wanted, EVENTS)
                assert await events(peer) == [{"error": error.message}]

            unprintable = InferResponse("identity", "1", (Tensor("N", "FP16", (1,), b"\0\0"),), final=False)
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(1), unprintable, told(BROKEN, final=False), numbered(2))
            model.answer(told(BROKEN))
            assert (await head(peer))[0] == 200
            first, second, third, fourth, last = await events(peer)
            assert (first["N"], fourth["N"]) == (1, 2)
            assert second["error"].startswith("sending FP16 data via JSON is not supported")
            assert third == last == {"error": "broken"}

    run(scenario())


@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_disconnect_cancels_the_request(run: Run, path: str) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            tasks = asyncio.all_tasks()
            model = await asked(front, peer, asking(path))
            if path == STREAM:
                model.answer(numbered(0))
                await head(peer)
            peer.close()
            await model.cancelled()
            model.answer(numbered(1), told(BROKEN))  # what was under way harms nobody
            await until(lambda: asyncio.all_tasks() <= tasks)

    run(scenario())


def test_disconnect_without_reading_cancels_the_request(run: Run) -> None:
    async def scenario() -> None:
        send_buffers = SendBufferLimit()
        async with decoupled(send_buffers=send_buffers, write_buffer_bytes=1000) as (front, peer):
            tasks = asyncio.all_tasks()
            model = await asked(front, peer, asking(STREAM))
            model.answer(*[sized(50_000)] * 400)
            await until(lambda: send_buffers.total > 20_000_000)
            peer.writer.transport.abort()
            await model.cancelled()
            await until(lambda: asyncio.all_tasks() <= tasks and not front.connections)

    run(scenario())


def test_a_slow_reader_gets_everything_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled(write_buffer_bytes=10_000) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            # Long ones are printed by a thread; the order stays.
            sizes = [1, 300_000, 2, 3, 300_000, 4, 100_000] * 10
            model.answer(*map(sized, sizes), LAST)
            await let_run()
            other = await front.connect()
            assert (await other.ask(request("/v2/health/live", method="GET")))[0] == 200
            await head(peer)
            found = [np.size(document["N"]) for document in await events(peer)]
            assert found == sizes

    run(scenario())


@pytest.mark.parametrize("limits", [{"stream_responses": 50}, {"stream_bytes": 50 * 50_000}])
def test_buffer_of_a_slow_reader_is_limited(run: Run, limits: Any) -> None:
    async def scenario() -> None:
        async with decoupled(write_buffer_bytes=1000, **limits) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            sent = 0
            while not model.call.cancelled:
                model.answer(sized(50_000))
                sent += 1
                assert sent < 1000
                await asyncio.sleep(0)
            await head(peer)
            *full, last = await events(peer)
            assert last == {"error": "client reads responses too slowly: send buffer limit exceeded"}
            assert 50 <= len(full) < sent
            assert (await peer.ask(request("/v2/health/live", method="GET")))[0] == 200

    run(scenario())


def test_http_1_0_gets_plain_events_and_the_end(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            body = b'{"INPUT0":1}'
            lines = f"POST {STREAM} HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: {len(body)}\r\n\r\n"
            model = await asked(front, peer, lines.encode() + body)
            model.answer(numbered(1), numbered(2), LAST)
            status, headers = await head(peer)
            assert (status, headers["connection"]) == (200, "close")
            assert "transfer-encoding" not in headers
            text = b'data: {"N":%d,"model_name":"identity","model_version":"1"}\n\n'
            assert await peer.reader.read() == text % 1 + text % 2

    run(scenario())


def test_a_stream_ends_before_the_server_does(run: Run) -> None:
    async def scenario() -> None:
        async with decoupled() as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            model.answer(numbered(1))
            await head(peer)
            stopping = asyncio.create_task(front.stop(5))
            await let_run()
            model.answer(numbered(2), LAST)
            assert numbers(await events(peer)) == [1, 2]
            assert await peer.at_end()
            await asyncio.wait_for(stopping, 60)

    run(scenario())


def test_buffers_of_all_streams_together_are_limited(run: Run) -> None:
    async def scenario() -> None:
        # A clock of its own: with the machine's, a pause between the block of the connection and that of the
        # stream makes the connection the slower sender, and it is closed before the stream can end politely.
        send_buffers = SendBufferLimit(1 << 20, map(float, itertools.count()).__next__)
        async with decoupled(send_buffers=send_buffers, write_buffer_bytes=1000) as (front, peer):
            model = await asked(front, peer, asking(STREAM))
            for _ in range(10_000):
                if model.call.cancelled:
                    break
                model.answer(sized(10_000))
                assert send_buffers.total <= 1 << 20
                await asyncio.sleep(0)
            assert model.call.cancelled
            await head(peer)
            *_, last = await events(peer)
            assert last == {"error": "client reads responses too slowly: send buffer limit exceeded"}
        assert send_buffers.measure() == 0

    run(scenario())
