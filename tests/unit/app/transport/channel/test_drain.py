"""A replica that leaves: its clients are told, and have all their answers before it closes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.tensors import InferResponse
from app.transport.channel import server as server_module
from app.transport.channel.client import Channel
from tests.unit.app.transport.conftest import KEY, Finals, Pair, ReplicaProcess, make_request
from tests.waiting import until

Start = Callable[..., Awaitable[Pair]]


async def test_draining_replica_process_loses_no_request(replica: ReplicaProcess, scheme: str) -> None:
    channel = await Channel.connect(replica.addresses[scheme], KEY)
    finals = Finals()
    for n in range(200):
        channel.send(make_request(600_000 if n % 20 == 0 else 64, model="slow"), finals.sink())
    assert replica.child.stdin is not None
    replica.child.stdin.write(b"drain\n")
    refused = 0
    while not channel.closed:
        try:
            channel.send(make_request(model="slow"), finals.sink())
        except InferError as error:
            assert error.code == ErrorCode.UNAVAILABLE
            refused += 1
        await asyncio.sleep(0.001)
    assert refused > 0
    assert finals.errors == []
    assert max(finals.counts) == 1 and finals.counts.count(0) == refused
    assert await replica.child.wait() == 0


async def test_drain_and_close(start: Start, scheme: str) -> None:
    pair = await start()
    closed: list[Any] = []
    channel = await pair.connect(scheme, on_close=lambda _, cause: closed.append(cause))
    finals = Finals()
    channel.send(make_request(model="hold"), finals.sink())
    draining = asyncio.ensure_future(pair.server.drain(5))
    await until(lambda: channel.draining)
    assert not channel.closed
    with pytest.raises(OSError):
        await Channel.connect(pair.addresses[scheme], KEY)
    pair.handler.replies[0](InferResponse("hold"))
    assert await draining
    await until(lambda: channel.closed)
    assert (finals.counts, finals.errors, closed) == ([1], [], [None])


async def test_drain_waits_for_a_client_that_is_held_up_but_not_for_one_that_hangs(
    start: Start, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = 100.0, 0

    def monotonic() -> float:
        nonlocal looks
        looks += 1
        return now

    pair = await start()
    channel, hanging = await pair.connect(scheme), await pair.connect(scheme)
    finals = Finals()
    channel.send(make_request(model="hold"), finals.sink())
    await until(lambda: pair.server.outstanding == 1)
    for each in (channel, hanging):
        each._transport.pause_reading()
    monkeypatch.setattr(server_module, "monotonic", monotonic)
    draining = asyncio.ensure_future(pair.server.drain(60))
    pair.handler.replies[0](InferResponse("hold"))
    await until(lambda: not pair.server.outstanding and looks > 10)
    now += 4.0
    looks = 0
    await until(lambda: looks > 10 or draining.done())
    assert not draining.done(), "the answer is not read yet"
    channel._transport.resume_reading()
    await until(lambda: channel.closed)
    assert (finals.counts, finals.errors) == ([1], []) and not draining.done()
    now += 2.0
    assert await draining and not hanging.closed


async def test_drain_times_out_and_close_fails_the_rest(start: Start) -> None:
    pair = await start()
    channel = await pair.connect()
    finals = Finals()
    channel.send(make_request(model="hold", id="1"), finals.sink())
    await until(lambda: pair.server.outstanding == 1)
    assert not await pair.server.drain(0.05)
    await pair.server.close()
    await until(lambda: channel.closed)
    assert finals.counts == [1]
    assert pair.handler.cancelled == ["1"]
