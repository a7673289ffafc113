"""A sequence has one replica, which any process finds."""

import gc
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest

from app.core.errors import ErrorCode, Failure
from app.core.failures import REPLICA_LOST
from app.core.sequences import END_SEQUENCES, missing_start
from app.core.tensors import InferRequest, InferResponse, failed
from app.routing.pool import ReplicaPool
from app.routing.sequence_call import SequenceCall, StaleSequences, missing, rank
from tests.unit.app.routing.conftest import KEY, NODE, SETTINGS, Replica, Sink, Start
from tests.waiting import until


def turn(sequence_id: int | str, start: bool = False, end: bool = False) -> InferRequest:
    return InferRequest("m", "", (), sequence_id=sequence_id, sequence_start=start, sequence_end=end)


@pytest.fixture
async def pools() -> AsyncIterator[list[ReplicaPool]]:
    """Two processes that route to the same replicas."""
    made = [ReplicaPool("m", NODE, KEY, SETTINGS) for _ in range(2)]
    yield made
    for pool in made:
        await pool.close(0)
        await until(partial(_closed, pool))


async def connect(pools: list[ReplicaPool], *replicas: Replica) -> None:
    for pool in pools:
        pool.update_from_thread(tuple(replica.address() for replica in replicas))
    await until(lambda: all(len(pool.channels) == len(replicas) for pool in pools))


def _closed(pool: ReplicaPool) -> bool:
    return not pool.channels


def _asked(replica: Replica) -> bool:
    return bool(replica.held)


def refuse(replica: Replica) -> None:
    """Answer what is held as a replica that does not have the sequence."""
    held, replica.held = replica.held, []
    for request, reply in held:
        reply(failed(missing_start("m", request.sequence_id)))


def ordered(replicas: list[Replica], sequence_id: int | str) -> list[Replica]:
    return sorted(replicas, key=lambda replica: rank(replica.name, sequence_id))


@pytest.mark.parametrize("sequence_id", [1, 2**64 - 1, "1", "s" * 128])
async def test_every_process_finds_the_same_replica(
    pools: list[ReplicaPool], start: Start, sequence_id: int | str
) -> None:
    replicas = await start("a", "b", "c")
    await connect(pools, *replicas)
    sink = Sink()
    for pool in pools:
        pool.channels_for(sequence_id)[0].send(turn(sequence_id), sink)
    first = ordered(replicas, sequence_id)[0]
    await until(lambda: first.taken == 2)


async def test_live_sequence_stays_when_replicas_are_added(pools: list[ReplicaPool], start: Start) -> None:
    replicas = await start("a", "b", "c")
    await connect(pools, *replicas)
    sink = Sink()
    first, second, _ = ordered(replicas, 7)
    for _number in range(3):
        SequenceCall(
            pools[0].channels_for(7),
            turn(7),
            sink,
            explain=partial(missing, lost=False),
            stale=StaleSequences(),
        )
        await until(lambda: bool(first.held))
        refuse(first)  # it came after the sequence started at the second
        await until(lambda: bool(second.held))
        second.answer()
    await until(lambda: sink.by() == [second.name] * 3)


async def test_missing_sequence_is_reported(pools: list[ReplicaPool], start: Start) -> None:
    replicas = await start("a", "b")
    await connect(pools, *replicas)
    sink = Sink()
    for lost, cause in ((False, ""), (True, REPLICA_LOST)):
        SequenceCall(
            pools[0].channels_for("x"), turn("x"), sink, partial(missing, lost=lost), StaleSequences()
        )
        for replica in ordered(replicas, "x"):
            await until(partial(_asked, replica))
            refuse(replica)
        await until(lambda: bool(sink.responses))
        error = sink.responses.pop().failure
        assert isinstance(error, Failure) and error.code is ErrorCode.INVALID_ARG
        assert error.message == missing_start("m", "x", cause).message


async def test_a_lost_replica_is_remembered(pools: list[ReplicaPool], start: Start) -> None:
    (a,) = await start("a")
    await connect(pools, a)
    assert not pools[0].lost_within(60)
    await a.server.close()
    await until(lambda: not pools[0].channels)
    assert pools[0].lost_within(60)
    assert not pools[0].lost_within(0)


async def test_cancel_reaches_the_replica_that_has_it(pools: list[ReplicaPool], start: Start) -> None:
    replicas = await start("a", "b")
    await connect(pools, *replicas)
    sink = Sink()
    first, second = ordered(replicas, 7)
    call = SequenceCall(
        pools[0].channels_for(7), turn(7), sink, explain=partial(missing, lost=False), stale=StaleSequences()
    )
    await until(lambda: bool(first.held))
    refuse(first)
    await until(lambda: bool(second.held))
    call.cancel()
    await until(lambda: len(second.cancelled) == 1)


async def test_end_reaches_the_replicas_that_were_not_asked(pools: list[ReplicaPool], start: Start) -> None:
    replicas = await start("a", "b", "c")
    await connect(pools, *replicas)
    sink, stale = Sink(), StaleSequences()
    first, second, third = ordered(replicas, 7)
    SequenceCall(
        pools[0].channels_for(7), turn(7, end=True), sink, explain=partial(missing, lost=False), stale=stale
    )
    await until(lambda: bool(first.held))
    refuse(first)
    await until(lambda: bool(second.held))
    second.answer()
    await until(lambda: third.controls == [(END_SEQUENCES, [7])])
    assert first.controls == second.controls == [], "the first has said that it does not have it"


async def test_replica_is_told_of_many_sequences_together(pools: list[ReplicaPool], start: Start) -> None:
    replicas = await start("a", "b")
    await connect(pools, *replicas)
    stale = StaleSequences()
    a, b = pools[0].channels
    for sequence_id in (1, "x", 3):
        stale.end([a, b], sequence_id)
    stale.started([a, b], 3)
    await until(lambda: len([each for each in replicas if each.controls]) == 2)
    told = {str(each.controls) for each in replicas}
    assert told == {str([(END_SEQUENCES, [1, "x"])]), str([(END_SEQUENCES, [1, "x", 3])])}


async def test_replica_that_is_lost_is_told_no_more(pools: list[ReplicaPool], start: Start) -> None:
    (a,) = await start("a")
    await connect(pools, a)
    stale = StaleSequences()
    channels = list(pools[0].channels)
    await a.server.close()
    await until(lambda: not pools[0].channels)
    stale.end(channels, 1)
    await until(lambda: not stale._untold)


class Receiver:
    """Keeps its request to cancel it, as the fronts do."""

    def __init__(self, pool: ReplicaPool) -> None:
        self.answered = False
        self.call = SequenceCall(
            pool.channels_for(7),
            turn(7),
            self.take,
            explain=partial(missing, lost=False),
            stale=StaleSequences(),
        )

    def take(self, response: InferResponse) -> None:
        self.answered = response.final


@pytest.mark.parametrize("known", [True, False])
async def test_answered_call_is_not_kept_alive(pools: list[ReplicaPool], start: Start, known: bool) -> None:
    """It would be garbage for the collector, and what the request has sent with it."""
    (replica,) = await start("a")
    await connect(pools, replica)
    gc.disable()
    try:
        receiver = Receiver(pools[0])
        gone = weakref.ref(receiver)
        await until(partial(_asked, replica))
        if known:
            replica.answer()
        else:
            refuse(replica)
        await until(partial(getattr, receiver, "answered"))
        del receiver
        assert gone() is None
    finally:
        gc.enable()
