"""What is sent again, and when: against a server that answers as it is told."""

import asyncio
import gc
import itertools
import json
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest
from aiohttp import web

from nereid_client import AsyncServer, DeadlineExceeded, ServerError, Unavailable, retry
from nereid_client.retry import Contact, Hedger, repeated

METADATA = {
    "name": "m",
    "inputs": [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}],
    "outputs": [{"name": "Y", "datatype": "FP32", "shape": [-1, 2]}],
}
ANSWER = {
    "model_name": "m",
    "model_version": "1",
    "outputs": [{"name": "Y", "datatype": "FP32", "shape": [1, 2], "data": [3, 4]}],
}
KEPT = 1 << 16
Answer = Callable[[web.Request], Awaitable[web.Response]]


class Script:
    """A server of one model, and what it does with each inference."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.bodies: list[bytes] = []
        self.sizes: list[int] = []

    async def infer(self, request: web.Request) -> web.Response:
        pieces, size = [], 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size < KEPT:
                pieces.append(piece)
        self.bodies.append(b"".join(pieces))
        self.sizes.append(size)
        answer = self.answers.pop(0) if self.answers else fine
        return await answer(request)


async def fine(_: web.Request) -> web.Response:
    return web.json_response(ANSWER)


async def busy(_: web.Request) -> web.Response:
    return web.json_response({"error": "too busy"}, status=503)


async def wrong(_: web.Request) -> web.Response:
    return web.json_response({"error": "no such shape"}, status=400)


async def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def never(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


@pytest.fixture
async def script() -> AsyncIterator[tuple[Script, str]]:
    played, application = Script(), web.Application()
    application.router.add_get("/v2/models/m", _json(METADATA))
    application.router.add_get("/v2/models/m/config", _json({"max_batch_size": 4}))
    application.router.add_post("/v2/models/m/infer", played.infer)
    for verb in ("register", "unregister"):
        application.router.add_post(f"/v2/systemsharedmemory/region/{{name}}/{verb}", _json({}))
    runner = web.AppRunner(application, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield played, f"http://{host}:{port}"
    await runner.cleanup()


def _json(document: object) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(document)

    return answer


async def test_priority_and_parameters_are_sent(script: tuple[Script, str]) -> None:
    played, url = script
    async with AsyncServer(url) as server:
        await server.model("m").options(priority=2, parameters={"a": True})(X=[1, 2])
    sent = json.loads(played.bodies[0][:-8])
    assert sent["parameters"] == {"a": True, "priority": 2, "binary_data_output": True}


@pytest.mark.parametrize("failure", [busy, cut])
async def test_failures_of_the_server_are_repeated(script: tuple[Script, str], failure: Answer) -> None:
    played, url = script
    played.answers = [failure, failure]
    async with AsyncServer(url, timeout=20) as server:
        result = await server.model("m")(X=[1, 2])
    assert result["Y"].tolist() == [3, 4]
    first, *others = played.bodies
    assert others == [first, first]
    assert json.loads(first[:-8])["inputs"][0]["shape"] == [1, 2]
    assert np.frombuffer(first[-8:], np.float32).tolist() == [1, 2]


async def test_a_large_request_is_repeated_without_a_copy(script: tuple[Script, str]) -> None:
    played, url = script
    played.answers = [busy]
    rows = np.zeros((1 << 22, 2), np.float32)
    async with AsyncServer(url, timeout=60) as server:
        model = server.model("m")
        await model.signature()
        tracemalloc.start()
        try:
            await model(X=rows)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert [size > rows.nbytes for size in played.sizes] == [True, True]
    assert peak < 0.3 * rows.nbytes


async def test_refusals_are_not_repeated(script: tuple[Script, str]) -> None:
    played, url = script
    played.answers = [wrong]
    async with AsyncServer(url) as server:
        with pytest.raises(ServerError, match=r"\[INVALID_ARGUMENT\] no such shape"):
            await server.model("m")(X=[1, 2])
    assert len(played.bodies) == 1


async def test_nothing_is_repeated_when_told_so_nor_in_a_sequence(script: tuple[Script, str]) -> None:
    played, url = script
    played.answers = [busy, busy]
    async with AsyncServer(url) as server:
        with pytest.raises(Unavailable, match="too busy"):
            await server.model("m").options(retry=False)(X=[1, 2])
        sequence = server.model("m").sequence()
        with pytest.raises(Unavailable, match="too busy"):
            await sequence(X=[1, 2])
    assert len(played.bodies) == 2


async def test_no_answer_within_the_deadline(script: tuple[Script, str]) -> None:
    played, url = script
    played.answers = [never]
    async with AsyncServer(url, timeout=0.3) as server:
        with pytest.raises(DeadlineExceeded):
            await server.model("m")(X=[1, 2])


async def test_all_attempts_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lefts = 100.0, []

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def attempt(left: float) -> int:
        lefts.append(left)
        await sleep(0.01)
        raise Unavailable("UNAVAILABLE", "too busy")

    monkeypatch.setattr(retry, "monotonic", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(Unavailable, match="too busy"):
        await repeated(attempt, 1.0, True, Contact("http://x"))
    assert lefts[0] == 1.0 and lefts == sorted(lefts, reverse=True)
    assert len(lefts) > 3 and now <= 101.0


async def test_a_slot_that_the_server_may_still_write_to_is_not_used_again(
    script: tuple[Script, str],
) -> None:
    played, url = script
    played.answers = [never]
    async with AsyncServer(url) as server, server.pool(1, "1KiB") as pool:
        model = server.model("m").via(pool)
        await model.signature()
        with pytest.raises(DeadlineExceeded):
            await model.options(timeout=0.3)(X=[1, 2])
        gc.collect()
        await asyncio.sleep(0)
        assert (await model(X=[1, 2]))["Y"].tolist() == [3, 4]
        assert pool.missed == 1


async def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 1000.0)  # no time is left for a second attempt
    async with AsyncServer("http://127.0.0.1:1", timeout=20) as server:
        assert not await server.live() and not await server.ready("m")
        with pytest.raises(Unavailable, match=r"cannot connect to 127[.]0[.]0[.]1:1: Connection refused"):
            await server.metadata()
        with pytest.raises(DeadlineExceeded, match="model 'm' is not ready after 0 s"):
            await server.wait_ready("m", timeout=0)


async def test_the_server_says_how_long_to_wait() -> None:
    attempts = itertools.count()

    async def attempt(left: float) -> int:
        next(attempts)
        raise Unavailable("UNAVAILABLE", "later", retry_after=9)

    with pytest.raises(Unavailable, match="later"):
        await repeated(attempt, 5, True, Contact("http://x"))
    assert next(attempts) == 1


async def test_a_late_call_is_sent_again_and_the_loser_cancelled() -> None:
    hedger, calls, cancelled = Hedger(), itertools.count(), []
    hedger._latencies.extend([0.01] * 20)

    async def attempt(left: float) -> int:
        number = next(calls)
        try:
            await asyncio.sleep(0 if number else 30)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    assert await hedger.run(attempt, 60) == 1
    await asyncio.sleep(0)
    assert cancelled == [0]


@pytest.mark.parametrize("latencies", [[1e-9] * 19, [*[1e-9] * 18, 60, 60]])
async def test_a_call_is_late_after_95_percent_of_at_least_20(latencies: list[float]) -> None:
    hedger, calls = Hedger(), itertools.count()
    hedger._latencies.extend(latencies)

    async def attempt(left: float) -> int:
        await asyncio.sleep(0.01)
        return next(calls)

    assert await hedger.run(attempt, 60) == 0 and next(calls) == 1


async def test_few_calls_are_sent_twice() -> None:
    hedger, calls = Hedger(), itertools.count()

    async def attempt(left: float) -> int:
        number = next(calls)
        await asyncio.sleep(0 if number < 20 else 0.003)
        return number

    for _ in range(120):
        await hedger.run(attempt, 60)
    assert next(calls) <= 120 + 1 + 0.05 * 120 + 1
