"""The router with two versions of a model, as in a rollout."""

import asyncio

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.rollout.split import WHOLE, Split
from app.core.sequences import missing_start
from app.core.tensors import InferRequest, failed
from app.dispatch.router import Router
from app.routing.table import ModelState, RoutingTable
from tests.unit.app.dispatch.test_router import entry, handles, publish, router, send, table  # noqa: F401
from tests.unit.app.routing.conftest import Sink, Start, request
from tests.waiting import until


async def test_a_request_goes_to_the_version_that_its_split_draws(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    (a,) = await start("a")
    both = entry("m:1"), entry("m:2")
    split = Split("r", "m", stable=1, candidate=2, weight=WHOLE)
    applying = asyncio.create_task(router.apply(RoutingTable(1, True, both, splits=(split,))))
    await asyncio.sleep(0)
    publish("m:1", a)
    publish("m:2", a)
    await asyncio.wait_for(applying, 60)
    send(router, request(), Sink())
    await until(lambda: a.taken == 1)
    assert [(found.version, count) for found, count in router.in_flight()] == [(2, 1)]


async def test_a_sequence_is_found_at_either_version(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    old, new = await start("old", "new")
    both = entry("m:1"), entry("m:2")
    applying = asyncio.create_task(router.apply(table(1, *both)))
    await asyncio.sleep(0)
    publish("m:1", old)
    publish("m:2", new)
    await asyncio.wait_for(applying, 60)
    sink = Sink()
    turn = InferRequest("m", "", (), sequence_id=7)
    router.send_in_sequence(both[::-1], turn, sink)
    await until(lambda: bool(new.held))
    new.held.pop()[1](failed(missing_start("m", 7)))
    await until(lambda: bool(old.held))
    old.answer()
    await until(lambda: sink.by() == ["old"])
    router.send_in_sequence(both[::-1], msgspec.structs.replace(turn, sequence_start=True), sink)
    await until(lambda: bool(new.held))
    assert router.losses(both[1]) == 0
    await new.server.close()
    await until(lambda: router.losses(both[1]) == 1)
    with pytest.raises(InferError, match="version 2 is not at ready state"):
        router.send_in_sequence(both[1:], turn, sink)


async def test_sequences_go_on_at_a_version_that_is_taken_out_of_service(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    config = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching()).SerializeToString()
    old, new = await start("old", "new")
    stable, candidate = (msgspec.structs.replace(entry(name), config=config) for name in ("m:1", "m:2"))
    leaving = msgspec.structs.replace(candidate, state=ModelState.UNLOADING)
    applying = asyncio.create_task(router.apply(table(1, stable, candidate)))
    await asyncio.sleep(0)
    publish("m:1", old)
    publish("m:2", new)
    await asyncio.wait_for(applying, 60)

    await router.apply(RoutingTable(2, True, (stable, leaving), lingering=(leaving,)))
    sink, turn = Sink(), InferRequest("m", "", (), sequence_id=7)
    send(router, turn, sink)
    await until(lambda: bool(old.held))
    old.held.pop()[1](failed(missing_start("m", 7)))
    await until(lambda: bool(new.held))
    new.answer()
    await until(lambda: sink.by() == ["new"])
    send(router, msgspec.structs.replace(turn, sequence_start=True), sink)
    await until(lambda: bool(old.held))
    old.answer()
    await until(lambda: sink.by() == ["new", "old"])
    await until(lambda: bool(new.controls))  # that the sequence began anew elsewhere

    await router.apply(RoutingTable(3, True, (stable,)))
    send(router, turn, sink)
    await until(lambda: bool(old.held))
    old.held.pop()[1](failed(missing_start("m", 7)))
    await until(lambda: len(sink.responses) == 3)
    failure = sink.responses[-1].failure
    assert failure is not None and failure.code is ErrorCode.UNAVAILABLE
    assert "sequence 7 of model 'm' has ended: version 2 was taken out of service" in failure.message


async def test_sequences_of_a_model_that_was_unloaded_are_no_reason_later(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    config = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching()).SerializeToString()
    old, new = await start("old", "new")
    first, second = (msgspec.structs.replace(entry(name), config=config) for name in ("m:1", "m:2"))
    for number, served, replica in ((1, first, old), (3, second, new)):
        applying = asyncio.create_task(router.apply(table(number, served)))
        await asyncio.sleep(0)
        publish(served.application, replica)
        await asyncio.wait_for(applying, 60)
        await router.apply(RoutingTable(number + 1, True, () if served is first else (second,)))
    sink = Sink()
    send(router, InferRequest("m", "", (), sequence_id=7), sink)
    await until(lambda: bool(new.held))
    new.held.pop()[1](failed(missing_start("m", 7)))
    await until(lambda: bool(sink.responses))
    failure = sink.responses[-1].failure
    assert failure is not None and failure.code is ErrorCode.INVALID_ARG
