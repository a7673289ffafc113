"""The way of calls by Serve handles to a model's process, over a server that is made up."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest, InferResponse
from app.transport.channel.server import ChannelServer
from deployments.model_process.handle_channel import HandleChannel
from tests.unit.deployments.served_model_bench import CONFIG, model_spec, request
from tests.waiting import let_run, until


class Replica:
    """Answers each request, or keeps it."""

    def __init__(self, answers: bool = True) -> None:
        self.asked: list[str] = []
        self.cancelled = 0
        self._answers = answers

    def submit(self, asked: InferRequest, sink: Sink) -> Cancel:
        self.asked.append(asked.id)
        if self._answers:
            sink(InferResponse(id=asked.id, final=True))
        return self._cancel

    def _cancel(self, advice: bool = False) -> None:
        self.cancelled += 1

    async def control(self, verb: str, payload: Any) -> Any:
        return None


Work = Callable[[HandleChannel, Path], Any]


def run(path: Path, work: Work) -> None:
    async def main() -> None:
        calls = HandleChannel(model_spec(path, CONFIG), str(path / "r.sock"))
        async with asyncio.timeout(10):
            await work(calls, path)
        calls.close()
        await let_run()

    asyncio.run(main())


async def listening(path: Path, replica: Replica) -> ChannelServer:
    server = ChannelServer(replica, bytes(32))
    await server.listen(str(path / "r.sock"), None)
    return server


def test_requests_share_a_channel_that_the_first_opens(sockets: Path) -> None:
    async def work(calls: HandleChannel, path: Path) -> None:
        replica = Replica()
        server = await listening(path, replica)
        found: list[InferResponse] = []
        for name in "ab":
            calls.send(request(name), found.append)
        await until(lambda: len(found) == 2)
        calls.send(request("c"), found.append)
        await until(lambda: len(found) == 3)
        assert replica.asked == ["a", "b", "c"] and not any(each.failure for each in found)
        await server.close()

    run(sockets, work)


def test_a_request_that_is_cancelled_before_it_is_sent(sockets: Path) -> None:
    async def work(calls: HandleChannel, path: Path) -> None:
        replica = Replica(answers=False)
        server = await listening(path, replica)
        calls.send(request("a"), lambda _: None)()
        await until(lambda: replica.cancelled)
        await server.close()

    run(sockets, work)


def test_a_process_that_cannot_be_reached_fails_requests_until_it_can(sockets: Path) -> None:
    async def work(calls: HandleChannel, path: Path) -> None:
        found: list[InferResponse] = []
        calls.send(request("a"), found.append)
        await until(lambda: found)
        assert found[0].failure is not None and "its process cannot be reached" in found[0].failure.message
        server = await listening(path, Replica())
        calls.send(request("b"), found.append)
        await until(lambda: len(found) == 2)
        await server.close()
        server = await listening(path, Replica())
        calls.send(request("c"), found.append)
        await until(lambda: len(found) == 3)
        assert [each.failure is None for each in found] == [False, True, True]
        await server.close()

    run(sockets, work)


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_channel_that_is_opened_while_it_closes_is_closed(sockets: Path, passes: int) -> None:
    async def work(calls: HandleChannel, path: Path) -> None:
        server = await listening(path, Replica(answers=False))
        calls.send(request("a"), lambda _: None)
        opening = calls._opening
        await let_run(passes)
        calls.close()
        assert opening is not None
        await until(lambda: opening.done() and opening.result().closing)
        await server.close()

    run(sockets, work)
