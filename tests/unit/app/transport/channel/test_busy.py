"""What a client makes of the silence of a replica that another process watches."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import not_found
from app.core.inference import Cancel, Sink
from app.core.tensors import InferRequest, InferResponse
from app.transport.channel.busy import BUSY, ask_busy
from app.transport.channel.client import Channel
from app.transport.channel.heartbeat import Excuse
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings
from tests.unit.app.transport.conftest import KEY, ReplicaProcess, make_request
from tests.waiting import let_run, until

FAST = TransportSettings(heartbeat=0.05, peer_timeout=0.2)


class Host:
    """What watches a replica."""

    def __init__(self) -> None:
        self.busy_s: float = 0.0
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False
        self.address = ""

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        raise NotImplementedError

    async def control(self, verb: str, payload: Any) -> Any:
        assert verb == BUSY
        self.asked += 1
        await self.answers.wait()
        if self.fails:
            raise not_found("no such verb")
        return self.busy_s

    def ask(self) -> "partial[Any]":
        return partial(ask_busy, self.address, KEY)


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    made = Host()
    server = ChannelServer(made, KEY)
    (made.address,) = await server.listen(unix_path=str(tmp_path / "host" / "host.sock"))
    yield made
    made.answers.set()
    await server.close()


async def occupied(replica: ReplicaProcess, host: Host) -> tuple[Channel, list[InferResponse]]:
    """A replica that is silent from now on, with a request in flight."""
    answers = list[InferResponse]()
    channel = await Channel.connect(replica.addresses["unix"], KEY, FAST, ask_busy=host.ask())
    channel.send(make_request(model="busy"), answers.append)
    return channel, answers


async def end(channel: Channel, replica: ReplicaProcess) -> None:
    replica.release()
    channel.close()
    await until(lambda: channel.closed)


async def test_a_busy_replica_is_neither_suspected_nor_failed(replica: ReplicaProcess, host: Host) -> None:
    host.busy_s = 3.5
    channel, answers = await occupied(replica, host)
    await until(lambda: host.asked > 8)  # a beat each, beyond `peer_timeout`
    assert not channel.suspected and channel.ready and not answers
    replica.release()
    await until(lambda: answers)
    assert answers[0].failure is None and not channel.suspected
    await end(channel, replica)


async def test_one_that_is_not_busy_is(replica: ReplicaProcess, host: Host) -> None:
    channel, answers = await occupied(replica, host)
    await until(lambda: channel.suspected)
    assert host.asked and not channel.unreachable
    await until(lambda: answers)
    assert answers[0].failure is not None and "no answer for" in answers[0].failure.message
    replica.release()
    await until(lambda: channel.ready)
    await end(channel, replica)


async def test_one_that_becomes_idle_and_stays_silent_is(replica: ReplicaProcess, host: Host) -> None:
    host.busy_s = 1.0
    channel, answers = await occupied(replica, host)
    await until(lambda: host.asked > 8)
    host.busy_s = 0.0
    await until(lambda: channel.suspected)
    assert not answers, "it had no time to answer after its execution"
    await until(lambda: answers)
    assert answers[0].failure is not None and "no answer for 0 s" in answers[0].failure.message
    await end(channel, replica)


async def test_a_host_that_does_not_answer_explains_nothing(replica: ReplicaProcess, host: Host) -> None:
    host.answers.clear()
    channel, answers = await occupied(replica, host)
    await until(lambda: channel.suspected)
    await until(lambda: answers)
    assert answers[0].failure is not None and host.asked == 1, "one question at a time"
    await end(channel, replica)


async def test_what_a_host_says(host: Host) -> None:
    host.busy_s = 1e-9
    assert await host.ask()() is True
    host.busy_s = 0
    assert await host.ask()() is False
    host.fails = True
    assert await host.ask()() is False
    assert await ask_busy(host.address, b"another key of a cluster.......") is False
    assert await ask_busy(host.address + "x", KEY) is False


class Asked:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.questions = list[asyncio.Future[bool]]()

    def __call__(self) -> "asyncio.Future[bool]":
        self.questions.append(asyncio.get_running_loop().create_future())
        return self.questions[-1]

    async def answer(self, busy: bool) -> None:
        await until(lambda: self.questions)
        self.questions.pop().set_result(busy)
        await let_run()


PERIOD = 1000.0


async def test_an_excuse_holds_for_the_first_question_and_after_each_answer() -> None:
    asked = Asked()
    excuse, now = Excuse(asked, PERIOD), asyncio.get_running_loop().time()

    def unexplained(periods: float) -> float:
        return round(excuse.unexplained(9 * PERIOD, now + periods * PERIOD) / PERIOD, 1)

    assert [unexplained(0), unexplained(2.4), unexplained(2.6)] == [0, 0, 9]
    await asked.answer(True)
    assert [unexplained(2.4), unexplained(2.6), unexplained(4)] == [0, 2.6, 4]
    await asked.answer(False)
    assert [unexplained(2.4), unexplained(5)] == [0, 5]
    await asked.answer(False)
    assert not asked.questions


async def test_an_answer_about_an_earlier_silence_says_nothing_of_the_next() -> None:
    asked = Asked()
    excuse, now = Excuse(asked, PERIOD), asyncio.get_running_loop().time()
    assert not excuse.unexplained(3 * PERIOD, now)
    excuse.reset()
    await asked.answer(True)
    later = now + 9 * PERIOD
    assert not excuse.unexplained(3 * PERIOD, later), "asked for the first time in this silence"
    await asked.answer(False)
    assert excuse.unexplained(6 * PERIOD, later + 2.6 * PERIOD) == 6 * PERIOD
    await asked.answer(False)
