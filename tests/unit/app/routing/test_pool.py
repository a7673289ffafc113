"""Which replica a request goes to, and what becomes of replicas that come and go."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.ray_adapter.serve.replicas import ReplicaAddress
from app.routing.pool import ReplicaPool, _kind_of_loss, retry_delay
from app.transport.channel.client import Channel
from tests.unit.app.routing.conftest import KEY, NODE, SETTINGS, Replica, Sink, Start, request
from tests.waiting import let_run, until


class Bench:
    """One pool, told of replicas as Serve would."""

    def __init__(self) -> None:
        self.pool = ReplicaPool("m", NODE, KEY, SETTINGS)
        self.sink = Sink()

    def publish(self, *replicas: Replica, node: str = NODE) -> None:
        self.pool.update_from_thread(tuple(replica.address(node) for replica in replicas))

    async def connect(self, *replicas: Replica, node: str = NODE) -> None:
        self.publish(*replicas, node=node)
        await until(lambda: len(self.pool.channels) == len(replicas))

    def submit(self, count: int = 1) -> list[Any]:
        return [self.pool.send(request(str(number)), self.sink) for number in range(count)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.pool.close(0)
    await until(lambda: not made.pool.channels)


async def test_submit_without_replicas_returns_none(bench: Bench) -> None:
    assert not bench.pool.available
    assert bench.submit() == [None]
    assert not await bench.pool.wait_available(0.01)


async def test_submit_chooses_the_replica_with_fewest_requests(bench: Bench, start: Start) -> None:
    a, b, c = await start("a", "b", "c")
    await bench.connect(a, b, c)
    bench.submit(9)
    await until(lambda: a.taken + b.taken + c.taken == 9)
    assert (a.taken, b.taken, c.taken) == (3, 3, 3)
    b.answer()
    await until(lambda: len(bench.sink.responses) == 3)
    bench.submit(3)
    await until(lambda: b.taken == 6)
    assert (a.taken, c.taken) == (3, 3)


async def test_prompts_that_begin_alike_go_to_one_replica(bench: Bench, start: Start) -> None:
    replicas = await start("a", "b", "c")
    await bench.connect(*replicas)
    for number in range(30):
        bench.pool.send_near("one", request(str(number)), bench.sink)
        await until(lambda: sum(len(each.held) for each in replicas) == 1)
        for each in replicas:
            each.answer()
        await until(lambda wanted=number + 1: len(bench.sink.responses) == wanted)  # type: ignore[misc]
    assert sorted(each.taken for each in replicas) == [0, 0, 30]
    for number in range(30):  # more at once than one may have
        bench.pool.send_near("one", request(str(number)), bench.sink)
    await until(lambda: sum(len(each.held) for each in replicas) == 30)
    assert max(len(each.held) for each in replicas) <= 13


async def test_wait_available_returns_when_a_replica_connects(bench: Bench, start: Start) -> None:
    waiting = asyncio.create_task(bench.pool.wait_available(5))
    (a,) = await start("a")
    bench.publish(a)
    assert await waiting
    assert bench.pool.available


async def test_replicas_can_be_published_from_another_thread(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    await asyncio.to_thread(bench.publish, a)
    assert await bench.pool.wait_available(5)


async def test_reconnects_when_the_replica_is_back(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await start("a")
    await bench.connect(a)
    bench.submit()
    await until(lambda: a.taken == 1)
    await a.server.close()
    await until(lambda: not bench.pool.available)
    (response,) = bench.sink.responses
    assert response.failure is not None and response.failure.code is ErrorCode.UNAVAILABLE
    assert response.failure.message.startswith("model 'm': connection to its replica lost: ")
    assert bench.submit() == [None]
    connect, attempts = Channel.connect, []

    async def counted(*arguments: Any, **options: Any) -> Channel:
        attempts.append(arguments)
        return await connect(*arguments, **options)

    monkeypatch.setattr(Channel, "connect", counted)
    await until(lambda: len(attempts) == 3)
    await a.restart()
    assert await bench.pool.wait_available(5)
    bench.submit()
    await until(lambda: len(a.held) == 1)


def test_delay_between_attempts_is_a_tenth_of_the_time_away() -> None:
    """A process that is back is found soon; one that stays away for an hour is asked for once a second."""
    now, attempts = 0.0, []
    while now < 3600:
        attempts.append(now)
        now += retry_delay(now)
    late = [after - back for back, after in itertools.pairwise(attempts)]
    assert all(delay <= max(0.021, back / 9) for back, delay in zip(attempts, late, strict=False))
    assert max(late) < 1.001 and len([each for each in attempts if each < 10]) < 60


async def test_replica_that_is_not_connected_makes_the_pool_incomplete(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    assert not bench.pool.incomplete
    await bench.connect(a, b)
    assert not bench.pool.incomplete
    await a.server.close()
    await until(lambda: len(bench.pool.channels) == 1)
    assert bench.pool.incomplete
    await a.restart()
    await until(lambda: not bench.pool.incomplete)
    bench.publish(b)
    await until(lambda: len(bench.pool.channels) == 1)
    assert not bench.pool.incomplete, "Serve lists one"


async def test_lost_replica_leaves_the_others(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    await bench.connect(a, b)
    await a.server.close()
    await until(lambda: len(bench.pool.channels) == 1)
    bench.submit(4)
    await until(lambda: b.taken == 4)
    assert bench.pool.available
    assert bench.pool.losses == {"connection lost": 1}


def test_kinds_of_losses_name_no_process() -> None:
    assert (
        _kind_of_loss("its process 77 was killed by signal 9 (SIGKILL)") == "was killed by signal 9 (SIGKILL)"
    )
    assert _kind_of_loss("its process 77 has ended") == "has ended"
    assert _kind_of_loss("[Errno 104] Connection reset by peer") == "connection lost"


async def test_draining_replica_gets_nothing_new(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    await bench.connect(a, b)
    bench.submit(2)
    await until(lambda: a.taken == b.taken == 1)
    draining = asyncio.create_task(a.server.drain(5))
    await until(lambda: any(channel.draining for channel in bench.pool.channels))
    bench.submit(4)
    await until(lambda: b.taken == 5)
    assert a.taken == 1
    a.answer()
    assert await draining
    await until(lambda: bench.sink.by() == ["a"])
    await until(lambda: len(bench.pool.channels) == 1)


async def test_last_replica_drains(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    await bench.connect(a)
    bench.submit()
    await until(lambda: a.taken == 1)
    draining = asyncio.create_task(a.server.drain(5))
    await until(lambda: not bench.pool.available)
    assert bench.submit() == [None]
    a.answer()
    assert await draining
    assert bench.sink.by() == ["a"]


async def test_replica_that_serve_dropped_is_retired(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    await bench.connect(a, b)
    bench.submit(2)
    await until(lambda: a.taken == b.taken == 1)
    bench.publish(b)
    await until(lambda: sum(channel.draining for channel in bench.pool.channels) == 1)
    bench.submit(3)
    await until(lambda: b.taken == 4)
    assert a.taken == 1
    a.answer()
    await until(lambda: bench.sink.by() == ["a"])
    await until(lambda: len(bench.pool.channels) == 1)
    await until(lambda: list(bench.pool._tasks) == ["b"])


async def test_replica_that_serve_dropped_while_it_was_being_connected(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = await start("a")
    connecting, go_on = asyncio.Event(), asyncio.Event()
    connect = Channel.connect

    async def slowly(*arguments: Any, **options: Any) -> Channel:
        connecting.set()
        await go_on.wait()
        return await connect(*arguments, **options)

    monkeypatch.setattr(Channel, "connect", slowly)
    bench.publish(a)
    await connecting.wait()
    bench.publish()
    await asyncio.sleep(0)
    go_on.set()
    await until(lambda: not bench.pool._tasks)
    assert not bench.pool.channels and not bench.pool.available
    await until(lambda: not a.server.connections)


async def test_replica_that_comes_back_as_its_task_ends(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    await bench.connect(a)
    (task,) = bench.pool._tasks.values()
    bench.publish()
    while not task.done():  # and the pool is not told yet
        await asyncio.sleep(0)
    bench.pool._update((a.address(),))
    assert await bench.pool.wait_available(5)


async def test_replica_that_comes_back_into_the_list(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    await bench.connect(a)
    bench.publish()
    await until(lambda: not bench.pool.channels)
    bench.publish(a)
    assert await bench.pool.wait_available(5)


async def test_other_node_is_reached_over_tcp(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    bench.pool.update_from_thread((a.address(), b.address("node-2")))
    await until(lambda: len(bench.pool.channels) == 2)
    assert sorted(channel.address for channel in bench.pool.channels) == sorted(
        [a.addresses["unix"], b.addresses["tcp"]]
    )
    (local,) = bench.pool.local_channels()
    assert local.address == a.addresses["unix"]


async def test_bad_address_leaves_the_others(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    nowhere = ReplicaAddress("nowhere", NODE, "", "")
    bench.pool.update_from_thread((nowhere, a.address()))
    assert await bench.pool.wait_available(5)
    bench.submit()
    await until(lambda: a.taken == 1)


async def test_close_waits_for_requests_in_flight(start: Start) -> None:
    (a,) = await start("a")
    bench = Bench()
    await bench.connect(a)
    bench.submit()
    await until(lambda: a.taken == 1)
    closing = asyncio.create_task(bench.pool.close(5))
    await let_run()
    assert not closing.done()
    a.answer()
    await closing
    assert bench.sink.by() == ["a"]
    await until(lambda: not a.server.connections)


async def test_close_ends_after_the_grace_period(start: Start) -> None:
    (a,) = await start("a")
    bench = Bench()
    await bench.connect(a)
    bench.submit()
    await bench.pool.close(0.05)
    await until(lambda: len(bench.sink.responses) == 1)
    assert bench.sink.responses[0].failure is not None


async def test_nothing_is_connected_after_close(start: Start) -> None:
    """Serve's word may be on its way from another thread when a pool is closed."""
    (a,) = await start("a")
    bench = Bench()
    bench.publish(a)
    await bench.pool.close(0)
    bench.publish(a)
    await let_run()
    assert not bench.pool._tasks and not bench.pool.channels and not a.server.connections


async def test_replica_whose_model_is_not_ready(bench: Bench, start: Start) -> None:
    a, b = await start("a", "b")
    await bench.connect(a, b)
    a.server.announce(False)
    await until(lambda: sum(channel.ready for channel in bench.pool.channels) == 1)
    bench.submit(3)
    await until(lambda: b.taken == 3)
    assert a.taken == 0 and bench.pool.available
    b.server.announce(False)
    await until(lambda: not bench.pool.available)
    bench.submit(2)  # they are taken all the same, and answered by an error if need be
    await until(lambda: a.taken == 2)
    a.server.announce(True)
    await until(lambda: bench.pool.available)


async def test_replica_that_says_not_ready_before_it_is_connected(bench: Bench, start: Start) -> None:
    (a,) = await start("a")
    a.server.announce(False)
    await bench.connect(a)
    await until(lambda: not bench.pool.available)
    assert await bench.pool.wait_available(0.01)
