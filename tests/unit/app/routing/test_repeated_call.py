"""What becomes of requests at a replica that cannot answer: repeated once elsewhere, or failed."""

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.core.tensors import InferRequest
from app.routing.pool import ReplicaPool
from app.routing.repeated_call import RepeatedCall
from app.transport.channel.client import Channel
from tests.unit.app.routing.conftest import KEY, NODE, SETTINGS, Replica, Sink, Start, request
from tests.waiting import let_run, until


@pytest.fixture
async def pool() -> AsyncIterator[ReplicaPool]:
    made = ReplicaPool("m", NODE, KEY, SETTINGS, repeatable=True)
    yield made
    await made.close(0)
    await until(lambda: not made.channels)


async def connect(pool: ReplicaPool, *replicas: Replica) -> dict[str, Channel]:
    """Publish replicas; return their channels by name."""
    pool.update_from_thread(tuple(replica.address() for replica in replicas))
    await until(lambda: len(pool.channels) == len(replicas))
    by_address = {channel.address: channel for channel in pool.channels}
    return {replica.name: by_address[replica.addresses["unix"]] for replica in replicas}


def silence(channel: Channel, monkeypatch: pytest.MonkeyPatch, obstacle: str) -> None:
    """Let three seconds pass in which the replica did not answer."""
    monkeypatch.setattr(channel._process, "obstacle", lambda: obstacle)
    channel._suspect(3.0)


def start_call(pool: ReplicaPool, sink: Sink, **fields: Any) -> RepeatedCall:
    call = RepeatedCall.start(pool.send, InferRequest("m", "", (), id="1", **fields), sink)
    assert call is not None
    return call


async def holder(a: Replica, b: Replica) -> tuple[Replica, Replica]:
    """Return the replica that has the request, and the other one."""
    await until(lambda: a.held or b.held)
    return (a, b) if a.held else (b, a)


async def test_a_request_at_a_stopped_replica_is_repeated_at_another(
    pool: ReplicaPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await start("a", "b")
    channels = await connect(pool, a, b)
    assert pool.repeats
    sink = Sink()
    start_call(pool, sink)
    first, other = await holder(a, b)
    silence(channels[first.name], monkeypatch, "its process 7 is stopped")
    await until(lambda: other.held)
    assert sink.responses == []
    first.answer()  # it goes on, and its late answer is not the second one
    other.answer()
    await until(lambda: sink.responses)
    await let_run()
    assert sink.by() == [other.name]


async def test_a_request_is_repeated_once(
    pool: ReplicaPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = await start("a", "b", "c")
    channels = await connect(pool, a, b, c)
    sink = Sink()
    start_call(pool, sink)
    for _ in range(2):
        await until(lambda: a.held or b.held or c.held)
        (busy,) = [replica for replica in (a, b, c) if replica.held]
        silence(channels[busy.name], monkeypatch, "its process 7 is stopped")
        busy.held = []
        await let_run()
    (response,) = sink.responses
    assert response.failure is not None and response.failure.code is ErrorCode.UNAVAILABLE
    assert "its process 7 is stopped" in response.failure.message


@pytest.mark.parametrize("reason", ["cancelled", "expired"])
async def test_a_request_that_nobody_waits_for_is_not_repeated(
    pool: ReplicaPool, start: Start, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    a, b = await start("a", "b")
    channels = await connect(pool, a, b)
    sink = Sink()
    call = start_call(pool, sink, deadline=monotonic() + 1e-6 if reason == "expired" else 0.0)
    first, other = await holder(a, b)
    if reason == "cancelled":
        call.cancel()
    silence(channels[first.name], monkeypatch, "its process 7 is stopped")
    await until(lambda: sink.responses)
    await let_run()
    assert len(sink.responses) == 1 and not other.taken


async def test_a_request_whose_replica_crashed_is_not_repeated(pool: ReplicaPool, start: Start) -> None:
    a, b = await start("a", "b")
    await connect(pool, a, b)
    sink = Sink()
    start_call(pool, sink)
    first, other = await holder(a, b)
    await first.server.close()
    await until(lambda: sink.responses)
    assert sink.responses[0].failure is not None and not other.taken


async def test_a_busy_replica_is_chosen_only_if_there_is_no_other(
    pool: ReplicaPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await start("a", "b")
    channels = await connect(pool, a, b)
    silence(channels["a"], monkeypatch, "")
    for _ in range(3):
        pool.send(request(), Sink())
    await until(lambda: b.taken == 3)
    assert not a.taken and pool.available
    silence(channels["b"], monkeypatch, "")
    assert not pool.available
    pool.send(request(), Sink())
    await until(lambda: a.taken == 1)
    assert pool.trouble == "replica a: no answer for 3 s; replica b: no answer for 3 s"
    channels["a"]._pong_received(None)
    assert pool.available


async def test_a_stopped_replica_gets_nothing_and_is_the_last_for_sequences(
    pool: ReplicaPool, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await start("a", "b")
    channels = await connect(pool, a, b)
    firsts = {pool.channels_for(number)[0] for number in range(1, 20)}
    assert firsts == set(channels.values())
    silence(channels["a"], monkeypatch, "its process 7 is stopped")
    assert {tuple(pool.channels_for(number)) for number in range(1, 20)} == {(channels["b"], channels["a"])}
    silence(channels["b"], monkeypatch, "its process 8 is stopped")
    assert pool.send(request(), Sink()) is None
    assert "replica b: no answer for 3 s, its process 8 is stopped" in pool.trouble


async def test_a_pool_of_one_replica_repeats_nothing(pool: ReplicaPool, start: Start) -> None:
    (a,) = await start("a")
    await connect(pool, a)
    assert not pool.repeats
