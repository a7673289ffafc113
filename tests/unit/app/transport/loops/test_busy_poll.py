"""How long an end of a channel polls before it sleeps, and for what."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.core.tensors import InferResponse
from app.transport.channel.connection import Connection
from app.transport.loops import busy_poll
from app.transport.loops.busy_poll import BusyPoll
from tests.unit.app.transport.conftest import Pair, infer, make_request
from tests.waiting import until

Start = Callable[..., Awaitable[Pair]]
LIMIT_US = 100


class Loop:
    """An event loop whose turns take 10 us each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = 1000
        self._ready: list[Callable[[], object]] = []
        monkeypatch.setattr(busy_poll, "monotonic_ns", lambda: self.now_us * 1000)

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._ready.append(callback)

    @property
    def is_awake(self) -> bool:
        return bool(self._ready)

    def turn(self) -> None:
        self.now_us += 10
        ready, self._ready = self._ready, []
        for callback in ready:
            callback()

    def wait(self, poll: BusyPoll, us: int) -> int:
        """Wait until a peer answers after so many microseconds; return how long the loop was awake."""
        poll.begin()
        since = awake_us = 0
        while since < us:
            awake_us += 10 * self.is_awake
            self.turn()
            since += 10
        poll.end()
        self.turn()
        return awake_us


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(busy_poll, "available_cpus", lambda: 2)
    return Loop(monkeypatch)


def poll_of(loop: Any, limit_us: int = LIMIT_US) -> BusyPoll:
    return BusyPoll(loop, limit_us)


def test_it_is_awake_until_the_answer_and_no_longer(loop: Loop) -> None:
    poll = poll_of(loop)
    assert [loop.wait(poll, 50) for _ in range(3)] == [50] * 3
    assert not loop.is_awake


def test_it_sleeps_after_the_limit(loop: Loop) -> None:
    assert LIMIT_US - 10 <= loop.wait(poll_of(loop), 5000) <= LIMIT_US + 10


def test_a_wait_that_is_begun_again_is_as_long_and_one_callback(loop: Loop) -> None:
    poll = poll_of(loop)
    poll.begin()
    loop.turn()
    poll.begin()
    assert loop.wait(poll, 80) == 80


def test_polling_in_vain_becomes_rare(loop: Loop) -> None:
    poll = poll_of(loop)
    awake_us = sum(loop.wait(poll, 500) for _ in range(2560))
    assert 0 < awake_us <= 20 * (LIMIT_US + 10)


def test_it_polls_again_once_answers_come_soon(loop: Loop) -> None:
    poll = poll_of(loop)
    for _ in range(1000):
        loop.wait(poll, 500)
    for _ in range(2 << 8):
        loop.wait(poll, 50)
    assert [loop.wait(poll, 50) for _ in range(10)] == [50] * 10


def test_it_rarely_yields_to_a_process_that_computes(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    yielded: list[int] = []

    def yield_processor() -> None:
        yielded.append(loop.now_us)
        if len(yielded) % 10 == 0:
            loop.now_us += 3000

    monkeypatch.setattr(busy_poll, "_yield_processor", yield_processor)
    poll = poll_of(loop)
    for _ in range(2560):
        loop.wait(poll, 50)
    assert 10 <= len(yielded) <= 10 * 12


def test_zero_never_polls(loop: Loop) -> None:
    assert loop.wait(poll_of(loop, 0), 50) == 0


def test_nor_does_a_process_with_one_processor(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    loop = Loop(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert loop.wait(poll_of(loop), 50) == 0


async def test_ends_poll_for_responses_and_for_the_next_request_of_a_lone_client(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    polling: list[type[Connection]] = []
    flush = Connection._flush

    def flushed(connection: Connection) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(BusyPoll, "begin", lambda _: polling.append(type(connection)))
            flush(connection)

    monkeypatch.setattr(Connection, "_flush", flushed)
    pair = await start()
    channel = await pair.connect()
    await until(lambda: len(pair.server.connections) == 1)
    (connection,) = pair.server.connections
    await channel.control("state", None)
    assert polling == [type(connection)]
    polling.clear()
    await infer(channel, make_request())
    assert polling == [type(channel), type(connection)]
    await pair.connect()
    await until(lambda: len(pair.server.connections) == 2)
    polling.clear()
    await infer(channel, make_request())
    assert polling == [type(channel)]


async def test_an_end_that_owes_a_response_does_not_poll(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    answers: list[InferResponse] = []
    channel.send(make_request(model="hold"), answers.append)
    await until(lambda: pair.server.outstanding == 1)
    (connection,) = pair.server.connections
    assert channel.awaits_more
    assert not connection.awaits_more
