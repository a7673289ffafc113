"""The generator, against a real HTTP server in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest

from nereid_client.tools.perf import figures
from nereid_client.tools.perf.generator.arrivals import draw
from nereid_client.tools.perf.generator.http1 import http_request
from nereid_client.tools.perf.generator.job import End, Endpoint, Job
from nereid_client.tools.perf.generator.load import Generator
from tests.unit.client.tools.perf.running import run
from tests.waiting import until

Answer = Callable[[bytes], Awaitable[bytes]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
REFUSED = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n{"error":"why"}'
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class HttpServer:
    """Answers each request by a function of its body; "" cuts the connection."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Endpoint("http", "127.0.0.1", self._server.sockets[0].getsockname()[1], "/v2/models/m/infer")

    async def stop(self) -> None:
        self._server.close()
        for writer in self._open:  # for which Python waits from 3.12 on
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                answer = await self._answer(await reader.readexactly(size))
                if not answer:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Answer], Awaitable[Endpoint]]]:
    servers: list[HttpServer] = []

    async def start(answer: Answer) -> Endpoint:
        servers.append(HttpServer(answer))
        return await servers[-1].start()

    yield start
    for server in servers:
        await server.stop()


async def ok(body: bytes) -> bytes:
    return OK


def job(endpoint: Endpoint, **fields: Any) -> Job:
    return Job(
        endpoint, (http_request(endpoint, {}, b"{}"),), timeout_s=fields.pop("timeout_s", 5.0), **fields
    )


async def test_open_loop_begins_requests_at_their_moments(serve: Any) -> None:
    moments = draw("constant", 200, 0.25, 0)
    rows, errors = await run(job(await serve(ok), arrivals=moments))
    assert len(rows) == len(moments) and not errors
    np.testing.assert_array_equal(np.diff(np.sort(rows[:, 0])), np.diff(moments))
    assert (figures.lateness(rows) >= 0).all() and (figures.latencies(rows) > 0).all()


class Stalling:
    """A server that answers nothing from a request on, for a time."""

    def __init__(self, at: int, seconds: float) -> None:
        self._at, self._seconds, self._count = at, seconds, 0
        self._until = 0.0

    async def answer(self, body: bytes) -> bytes:
        self._count += 1
        loop = asyncio.get_running_loop()
        if self._count == self._at:
            self._until = loop.time() + self._seconds
        await asyncio.sleep(max(0.0, self._until - loop.time()))
        return OK


async def test_stall_makes_every_request_of_its_time_late_in_an_open_loop_alone(serve: Any) -> None:
    open_loop = job(await serve(Stalling(20, 0.3).answer), arrivals=draw("constant", 200, 0.6, 0))
    rows, _ = await run(open_loop)
    assert (figures.latencies(rows) > 50e6).sum() >= 40  # 200/s for 0.25 s
    closed_loop = job(await serve(Stalling(20, 0.3).answer), concurrency=1)
    rows, _ = await run(closed_loop, 60)
    assert 1 <= (figures.latencies(rows) > 250e6).sum() < 10  # one, but for a busy machine


async def test_closed_loop_keeps_so_many_in_flight(serve: Any) -> None:
    now, most = 0, 0

    async def counted(body: bytes) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        return OK

    rows, errors = await run(job(await serve(counted), concurrency=3), 20)
    assert most == 3 and len(rows) >= 20 and not errors


async def test_requests_wait_for_a_connection_and_their_latency_counts_it(serve: Any) -> None:
    async def slow(body: bytes) -> bytes:
        await asyncio.sleep(0.02)
        return OK

    rows, _ = await run(job(await serve(slow), arrivals=draw("constant", 1000, 0.02, 0), connections=2))
    latencies = np.sort(figures.latencies(rows)) / 1e6
    assert len(rows) == 20 and latencies[-1] > 150  # 20 requests, 2 at a time, 20 ms each
    assert np.median(figures.service_times(rows)) < np.median(figures.latencies(rows))


async def test_errors_are_counted_by_their_texts(serve: Any) -> None:
    answers = chain([OK, REFUSED, b"", OK, b"nonsense\r\n\r\n"], repeat(OK))

    async def answer(body: bytes) -> bytes:
        return next(answers)

    rows, errors = await run(job(await serve(answer), concurrency=1), 8)
    assert errors["HTTP 400: why"] == 1 and sum(errors.values()) == 3, errors
    assert (rows[:, 4] == End.REFUSED).sum() == 1 and (rows[:, 4] == End.CUT).sum() == 2
    assert rows[-1, 4] == End.OK  # it goes on over new connections


async def test_request_without_an_answer_in_time_has_failed(serve: Any) -> None:
    async def never(body: bytes) -> bytes:
        await asyncio.sleep(30)
        return OK

    load = job(await serve(never), arrivals=np.array([0]), timeout_s=0.15)
    rows, errors = await run(load)
    assert rows[:, 4].tolist() == [End.LATE] and errors == {"no answer in time": 1}
    assert 0.15 <= figures.latencies(rows)[0] / 1e9 < 2


async def test_server_that_is_not_there() -> None:
    server = HttpServer(ok)
    endpoint = await server.start()
    await server.stop()
    with pytest.raises(OSError):
        await Generator(job(endpoint, concurrency=1)).open()


async def test_server_that_goes_away_fails_requests_without_a_pause(serve: Any) -> None:
    server = HttpServer(ok)
    generator = Generator(job(await server.start(), arrivals=draw("constant", 100, 60, 0)))
    await generator.open()
    generator.begin(time.monotonic_ns())
    await until(lambda: generator._records)
    await server.stop()
    for connection in list(generator._connections):
        connection.close()
    await until(lambda: any("no connection" in text for text in generator._errors))
    await generator.stop()


async def test_answers_are_checked(serve: Any) -> None:
    body = b'{"outputs":[{"name":"Y","datatype":"INT32","shape":[2],"data":[1,%d]}]}'
    values = chain([2, 2, 3], repeat(2))

    async def answer(_: bytes) -> bytes:
        data = body % next(values)
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data

    expected = (({"Y": np.array([1, 2], np.int32)},),)
    rows, errors = await run(job(await serve(answer), concurrency=1, expected=expected), 10)
    assert errors == {"wrong answer: output 'Y' has 3 at 1, not 2": 1} and figures.wrong(rows) == 1


async def test_answers_unlike_the_one_before_are_read_too(serve: Any) -> None:
    """The head of an answer is learned; others come between, in pieces, and of the same length."""
    refused = b"HTTP/1.1 400 OK\r\nContent-Length: 2\r\n\r\n{}"
    longer = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + bytes(200_000)
    closing = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    answers = chain(
        [OK, OK, refused, OK, longer, OK, closing, OK, STREAM + b"2\r\n{}\r\n0\r\n\r\n"], repeat(OK)
    )

    async def answer(body: bytes) -> bytes:
        return next(answers)

    rows, errors = await run(job(await serve(answer), concurrency=1), 12)
    assert errors == {"HTTP 400: {}": 1} and rows[2, 4] == End.REFUSED


async def test_repeated_requests_take_payloads_in_turn_and_every_answer_counts(serve: Any) -> None:
    got: list[bytes] = []

    async def answer(body: bytes) -> bytes:
        got.append(body)
        return OK

    endpoint = await serve(answer)
    payloads = tuple(http_request(endpoint, {}, b"%d" % place) for place in range(3))
    rows, errors = await run(Job(endpoint, payloads, timeout_s=5.0, concurrency=1), 20)
    assert got == [b"%d" % (i % 3) for i in range(len(got))] and len(rows) == len(got) >= 20 and not errors
    assert (rows[1:, 0] >= rows[:-1, 3]).all()  # each begins when the one before has ended


async def test_repeated_request_without_an_answer_has_failed(serve: Any) -> None:
    calm = chain(repeat(0.0, 3), repeat(30.0))

    async def answer(body: bytes) -> bytes:
        await asyncio.sleep(next(calm))
        return OK

    rows, errors = await run(job(await serve(answer), concurrency=1, timeout_s=0.3), 4)
    assert rows[:, 4].tolist()[:4] == [End.OK] * 3 + [End.LATE] and set(errors) == {"no answer in time"}
    assert rows[3, 0] >= rows[2, 3]


async def test_requests_that_a_server_reads_slowly_are_sent_whole(serve: Any) -> None:
    sizes: set[int] = set()

    async def answer(body: bytes) -> bytes:
        sizes.add(len(body))
        return OK

    endpoint = await serve(answer)
    load = Job(endpoint, (http_request(endpoint, {}, bytes(20_000_000)),), timeout_s=5.0, concurrency=1)
    rows, errors = await run(load, 1)
    assert len(rows) >= 1 and not errors and sizes == {20_000_000}


async def test_steps_of_a_sequence_begin_after_the_one_before(serve: Any) -> None:
    got: list[bytes] = []
    now: set[bytes] = set()

    async def answer(body: bytes) -> bytes:
        got.append(body)
        assert body[:1] not in now
        now.add(body[:1])
        await asyncio.sleep(0.005)
        now.discard(body[:1])
        return OK

    endpoint = await serve(answer)
    steps = tuple(
        tuple(http_request(endpoint, {}, name + b"%d" % step) for step in range(3)) for name in (b"a", b"b")
    )
    load = replace(job(endpoint, arrivals=draw("constant", 1000, 0.05, 0)), sequences=steps)
    rows, _ = await run(load)
    assert len(rows) == 50
    for name in (b"a", b"b"):
        own = [body for body in got if body[:1] == name]
        assert own == [name + b"%d" % (i % 3) for i in range(len(own))] and len(own) > 20


async def test_stream_of_events(serve: Any) -> None:
    async def answer(body: bytes) -> bytes:
        chunks = [b"data: {}\n\n", b"data: {", b"}\n\n", b'data: {}\n\ndata: {"x":1}\n\n']
        return STREAM + b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"

    endpoint = replace(await serve(answer), streaming=True)
    rows, errors = await run(job(endpoint, arrivals=np.arange(5) * 10_000_000))
    assert figures.responses(rows) == 20 and not errors and len(figures.first_responses(rows)) == 5


@pytest.mark.parametrize(("last", "text"), [(2, ""), (3, "response 1: output 'S' has 2 at 0, not 3")])
async def test_responses_of_a_stream_are_checked(serve: Any, last: int, text: str) -> None:
    async def answer(body: bytes) -> bytes:
        events = b'data: {"S":"a","id":"7"}\n\ndata: {"S":2}\n\n'
        return STREAM + b"%x\r\n%s\r\n0\r\n\r\n" % (len(events), events)

    endpoint = replace(await serve(answer), streaming=True)
    expected = (({"S": np.array([b"a"], object)}, {"S": np.array([last], np.int32)}),)
    rows, errors = await run(job(endpoint, concurrency=1, expected=expected), 3)
    assert set(errors) == ({f"wrong answer: {text}"} if text else set()) and len(rows) > 2
