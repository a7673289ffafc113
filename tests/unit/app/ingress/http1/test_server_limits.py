"""What an HTTP front does not wait for, does not keep, and ends."""

import asyncio
import gc
import json
from typing import Any

import numpy as np
import pytest

from app.core.errors import InferError, invalid_arg
from app.ingress.http1 import body
from app.ingress.net import listener, server_state
from app.ingress.net.slow_clients import SendBufferLimit
from app.transport.memory import shared_pool
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.http_peer import Peer, Run, binary_infer, fronted, json_infer, request
from tests.unit.garbage import alive
from tests.waiting import let_run, until


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the timeouts of connections every few milliseconds, not once a second."""
    monkeypatch.setattr(listener, "_CHECK_INTERVAL_S", 0.005)


@pytest.mark.usefixtures("frequent_checks")
def test_slow_requests_time_out(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(read_timeout_s=0.05) as front:
            for begun in (b"GET /v2 HT", b"POST /v2 HTTP/1.1\r\nContent-Length: 300000\r\n\r\nabc"):
                peer = await front.connect()
                await peer.send(begun)
                assert (await peer.response())[0] == 408
                assert await peer.at_end()

    run(scenario())


@pytest.mark.usefixtures("frequent_checks")
def test_idle_connections_are_closed(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(idle_timeout_s=0.05) as front:
            peer = await front.connect()
            assert (await peer.ask(json_infer()))[0] == 200
            assert await peer.at_end()

    run(scenario())


@pytest.mark.usefixtures("frequent_checks")
def test_client_that_does_not_read_is_disconnected(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.large_output = bytes(30 << 20)
        async with fronted(service, write_timeout_s=0.05) as front:
            peer = await front.connect()
            await peer.send(binary_infer(np.ones((1, 1), np.float32)) * 2)
            await until(lambda: front.connections)
            await until(lambda: not front.connections)
            assert service.requests == 1  # The second was not begun: its response would have had to wait too.

    run(scenario())


def test_client_that_reads_below_the_minimum_rate_is_disconnected(run: Run) -> None:
    """A byte now and then would hold the response for days."""

    async def scenario() -> None:
        service = FakeService()
        service.large_output = bytes(30 << 20)
        send_buffers = SendBufferLimit()
        async with fronted(service, send_buffers, min_client_rate=4096) as front:
            peer = await front.connect()
            await peer.send(binary_infer(np.ones((1, 1), np.float32)))
            [connection] = front.open_connections()
            await until(lambda: connection.buffered_bytes() > 10 << 20)
            peer.pause()
            now = asyncio.get_running_loop().time()
            connection.check_time(now)
            left = connection.buffered_bytes()
            await until(lambda: peer.take(1 << 16) and connection.buffered_bytes() < left - 60 * 4096)
            for second in (59, 118):  # fast enough until the first
                connection.check_time(now + second)
                assert not connection._transport.is_closing()
            assert peer.take(16)
            connection.check_time(now + 120)
            assert connection._transport.is_closing()
            assert send_buffers.too_slow == 1
            await until(lambda: not front.connections)

    run(scenario())


def test_connection_beyond_the_limit_is_told_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_state, "MAX_REFUSED", 2)

    async def scenario() -> None:
        async with fronted(max_connections=1) as front:
            admitted = await front.connect()
            assert (await admitted.ask(json_infer()))[0] == 200
            refused, silent = await front.connect(), await front.connect()
            assert await (await front.connect()).at_end()  # one too many even for that
            status, headers, body = await refused.ask(json_infer())
            assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "1")
            assert json.loads(body) == {
                "error": "too many connections: the server accepts 1 (--max-connections)"
            }
            assert await refused.at_end() and await silent.at_end()
            assert (await admitted.ask(json_infer()))[0] == 200
            assert front.fake.requests == 2
            assert front.refusals == 3

    run(scenario())


def test_buffered_bytes_and_connections_are_bounded(run: Run) -> None:
    async def scenario() -> None:
        async with fronted(max_buffered_bytes=300_000, max_connections=2) as front:
            peers = [await front.connect() for _ in range(2)]
            for peer in peers:
                await peer.send(b"POST /v2 HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(200_000))
            done, _ = await asyncio.wait(
                [asyncio.create_task(peer.response()) for peer in peers], return_when="FIRST_COMPLETED"
            )
            assert [task.result()[0] for task in done] == [503]
            assert await (await front.connect()).at_end()

    run(scenario())


def test_abandoned_body_is_freed_at_once(run: Run) -> None:
    """Before the collector runs, a hundred more of sixty megabytes each may arrive."""

    async def scenario() -> None:
        memory = shared_pool._process_pool()
        assert memory is not None
        async with fronted() as front:
            gc.collect()
            gc.disable()
            try:
                before = memory.live
                peer = await front.connect()
                await peer.send(b"POST /v2 HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(200_000))
                await until(lambda: memory.live > before)
                await until(lambda: front.buffered_bytes >= 200_000)
                peer.close()
                await until(lambda: not front.connections)
                await until(lambda: memory.live == before)
            finally:
                gc.enable()

    run(scenario())


def test_body_without_memory_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(body, "allocate_aligned", refuse)

    async def scenario() -> None:
        async with fronted() as front:
            peer = await front.connect()
            await peer.send(b"POST /v2 HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n")
            assert (await peer.response())[0] == 503

    run(scenario())


def test_stop_answers_requests_on_open_connections(run: Run) -> None:
    """Once, for their clients to go elsewhere."""

    async def scenario() -> None:
        async with fronted(drain_idle_s=60) as front:
            peer = await front.connect()
            assert (await peer.ask(json_infer()))[0] == 200
            stopping = asyncio.create_task(front.stop(5))
            await let_run()
            with pytest.raises(OSError):
                await front.connect()
            status, headers, _ = await peer.ask(json_infer())
            assert (status, headers["connection"]) == (200, "close")
            assert await peer.at_end()
            await stopping

    run(scenario())


def test_stop_finishes_requests_in_flight(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.hold = True
        async with fronted(service, drain_idle_s=0.05) as front:
            busy, idle = await front.connect(), await front.connect()
            assert (await idle.ask(request("/v2/health/live", method="GET")))[0] == 200
            await busy.send(json_infer())
            await service.asked()
            stopping = asyncio.create_task(front.stop(5))
            assert await idle.at_end()
            with pytest.raises(OSError):
                await front.connect()
            asked, sink = service.held[0]
            sink(service.answer(asked))
            status, headers, _ = await busy.response()
            assert (status, headers["connection"]) == (200, "close")
            assert await busy.at_end()
            await stopping

    run(scenario())


def test_stop_aborts_after_the_grace_period(run: Run) -> None:
    async def scenario() -> None:
        service = FakeService()
        service.hold = True
        async with fronted(service) as front:
            peer = await front.connect()
            await peer.send(json_infer())
            await service.asked()
            await front.stop(0.05)
            assert service.calls[0].cancelled

    run(scenario())


def test_requests_create_no_cyclic_garbage(run: Run) -> None:
    """Cyclic garbage on the hot path showed as pauses of 20 ms at the 99th percentile."""

    async def scenario() -> None:
        async with fronted() as front:
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
            data = binary_infer(np.ones((1, 4), np.float32))
            peer = Peer(reader, writer)
            await peer.ask(data)
            found = []
            gc.disable()
            try:
                for _ in range(4):  # what else lives in this process may leave something once
                    front.fake.calls.clear()
                    gc.collect()
                    for _ in range(200):
                        assert (await peer.ask(data))[0] == 200
                    found.append(gc.collect())
            finally:
                gc.enable()
                writer.close()
            assert min(found) < 100

    run(scenario())


def test_slow_readers_share_one_limit(run: Run) -> None:
    """Each connection alone is within its limits."""

    async def scenario() -> None:
        service = FakeService()
        service.large_output = bytes(30 << 20)
        send_buffers = SendBufferLimit(100 << 20)
        async with fronted(service, send_buffers) as front:
            peers = [await front.connect() for _ in range(6)]
            for number, peer in enumerate(peers, 1):
                await peer.send(binary_infer(np.ones((1, 1), np.float32)))
                await until(lambda number=number: service.requests == number)  # type: ignore[misc]
            await until(lambda: 1 <= send_buffers.evicted == 6 - front.connections)
            assert 0 < send_buffers.measure() <= 100 << 20
            assert (await peers[-1].response())[0] == 200  # the last that came, and reads now
        assert send_buffers.measure() == 0

    run(scenario())


def test_failed_requests_leak_nothing(run: Run) -> None:
    async def scenario() -> None:
        async with fronted() as front:
            front.fake.failure = invalid_arg("no")
            peer = await front.connect()
            for data in (json_infer(), binary_infer(np.ones((1, 4), np.float32))) * 10:
                assert (await peer.ask(data))[0] == 400
            assert alive(InferError) < 10

    run(scenario())
