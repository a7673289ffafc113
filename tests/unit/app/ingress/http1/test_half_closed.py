"""Clients that end their side of a connection: those that read on are answered, the others are noticed."""

import json
from time import monotonic

import msgspec
import numpy as np
import pytest

from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import Peer, Run, binary_infer, fronted, json_infer, request
from tests.waiting import until


async def held(service: FakeService, peer: Peer, data: bytes) -> None:
    """Send a request that the service keeps, and end the client's side."""
    service.hold = True
    await peer.send(data)
    await service.asked()
    peer.writer.write_eof()


def answer(service: FakeService) -> None:
    asked, sink = service.held.pop(0)
    sink(service.answer(asked))


@pytest.mark.parametrize("data", [json_infer(), binary_infer(np.ones((1, 100_000), np.float32))], ids=len)
def test_client_that_reads_on_is_answered(run: Run, data: bytes) -> None:
    async def scenario() -> None:
        service = FakeService()
        async with fronted(service) as front:
            peer = await front.connect()
            for _ in range(3):  # the last ones are recognised where that is compiled
                service.hold = False
                assert (await peer.ask(data))[0] == 200
            await held(service, peer, data)
            answer(service)
            assert (await peer.response())[0] == 200
            assert await peer.at_end()

    run(scenario())


def test_slow_answer_comes_behind_interim_ones(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        async with fronted(service) as front:
            peer = await front.connect()
            await held(service, peer, json_infer())
            assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            assert not service.calls[0].cancelled
            answer(service)
            assert (await peer.response())[0] == 200
            assert await peer.at_end()

    run(scenario())


def test_all_pipelined_requests_are_answered(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            await peer.send(b"".join(json_infer(id=str(n)) for n in range(20)) + b"POST /v2/mod")
            peer.writer.write_eof()
            for number in range(20):
                assert json.loads((await peer.response())[2])["id"] == str(number)
            assert await peer.at_end()

    run(scenario())


@pytest.mark.parametrize(
    "begun", [b"", b"POST /v2", b"POST /v2 HTTP/1.1\r\nContent-Length: 300000\r\n\r\nabc"]
)
def test_nothing_is_kept_open_for_a_request_that_is_not_whole(run: Run, begun: bytes) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            await peer.ask(json_infer())
            await peer.send(begun)
            peer.writer.write_eof()
            assert await peer.at_end()

    run(scenario())


def test_client_that_is_gone_cancels_its_request(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        async with fronted(service) as front:
            peer = await front.connect()
            await held(service, peer, json_infer())
            peer.close()
            await until(lambda: service.calls[0].cancelled)
            await until(lambda: not front.connections)

    run(scenario())


def test_client_of_http_1_0_cannot_be_asked(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        async with fronted(service) as front:
            data = json_infer().replace(b"HTTP/1.1", b"HTTP/1.0", 1)
            peer = await front.connect()
            await held(service, peer, data)
            answer(service)
            assert (await peer.response())[0] == 200
            peer = await front.connect()
            await held(service, peer, data)
            began = monotonic()
            assert await peer.at_end()
            assert service.calls[-1].cancelled and monotonic() - began < 5

    run(scenario())


def test_client_is_asked_by_a_comment_within_a_stream_of_events(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        async with fronted(service) as front:
            peer = await front.connect()
            service.hold = True
            await peer.send(request("/v2/models/identity/generate_stream", b'{"INPUT0":[1,2]}'))
            await service.asked()
            asked, sink = service.held.pop(0)
            sink(msgspec.structs.replace(service.answer(asked), final=False))
            await peer.reader.readuntil(b"\r\n\r\n")
            peer.writer.write_eof()
            assert await peer.reader.readuntil(b":\n\n\r\n")
            sink(service.answer(asked))
            last = await peer.reader.read()
            assert last.count(b"data: ") == 1 and last.endswith(b"0\r\n\r\n")

    run(scenario())
