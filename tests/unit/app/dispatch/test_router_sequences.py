"""The router and the requests of sequences."""

import asyncio
import os
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure
from app.core.failures import REPLICA_LOST
from app.core.sequences import END_SEQUENCES, missing_start
from app.core.tensors import InferRequest, RegionSlice, Tensor, failed
from app.dispatch.router import Router
from app.ray_adapter.serve import replicas
from app.routing.sequence_call import rank
from app.transport.memory.client_regions import SHM_DIRECTORY
from tests.unit.app.dispatch.test_router import apply, entry, handles, router, send, table  # noqa: F401
from tests.unit.app.routing.conftest import Replica, Sink, Start
from tests.waiting import until


async def test_start_of_a_sequence_ends_it_at_the_other_replicas(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    """They may have an earlier one, which began while this replica was away."""
    found = await start("a", "b", "c")
    config = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching())
    keeps = msgspec.structs.replace(entry("m:1"), config=config.SerializeToString())
    await apply(router, table(1, keeps), "m:1", *found)
    await until(lambda: len(router.pool(router.resolve("m")).channels) == len(found))
    send(router, InferRequest("m", "", (), sequence_id="s", sequence_start=True), Sink())
    await until(lambda: sum(replica.taken for replica in found) == 1)
    others = [replica for replica in found if not replica.taken]
    await until(lambda: all(replica.controls for replica in others))
    assert {str(replica.controls) for replica in others} == {str([(END_SEQUENCES, ["s"])])}
    assert [replica.controls for replica in found if replica.taken] == [[]]


async def test_sequence_may_be_at_a_replica_that_is_not_connected(
    router: Router,  # noqa: F811
    start: Start,
) -> None:
    """It may have begun there through another ingress, which has connected to the new process already."""
    found = await start("a", "b")
    config = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching())
    keeps = msgspec.structs.replace(entry("m:1"), config=config.SerializeToString())
    await apply(router, table(1, keeps), "m:1", *found)
    pool = router.pool(router.resolve("m"))
    await until(lambda: len(pool.channels) == 2)
    away, other = sorted(found, key=lambda replica: rank(replica.name, "s"))
    await away.server.close()
    await until(lambda: len(pool.channels) == 1)
    turn = InferRequest("m", "", (), sequence_id="s")

    async def refused(*asked: Replica) -> Failure | None:
        sink = Sink()
        send(router, turn, sink)
        for replica in asked:
            await until(partial(getattr, replica, "held"))
            replica.held.pop()[1](failed(missing_start("m", "s")))
        await until(partial(getattr, sink, "responses"))
        return sink.responses[0].failure

    failure = await refused(other)
    assert failure is not None and failure.code is ErrorCode.UNAVAILABLE
    assert "replica that may have the sequence is being connected" in failure.message
    await away.restart()
    await until(lambda: len(pool.channels) == 2)
    failure = await refused(away, other)
    assert failure is not None and failure.code is ErrorCode.INVALID_ARG
    assert REPLICA_LOST in failure.message


@pytest.mark.parametrize("start_flag", [False, True])
async def test_shared_memory_of_a_sequence_on_another_node(
    router: Router,  # noqa: F811
    start: Start,
    start_flag: bool,
) -> None:
    (a,) = await start("a")
    config = mc.ModelConfig(sequence_batching=mc.ModelSequenceBatching())
    keeps = msgspec.structs.replace(entry("m:1"), config=config.SerializeToString())
    applying = asyncio.create_task(router.apply(table(1, keeps)))
    await asyncio.sleep(0)
    replicas.publish("m:1", a.metadata("another"))
    await asyncio.wait_for(applying, 60)
    file = Path(SHM_DIRECTORY, f"nereid-router-{os.getpid()}")
    file.write_bytes(b"12345678")
    try:
        place = RegionSlice("r", 0, 8, file.name, file.stat().st_ino)
        inputs = (Tensor("I", "UINT8", (8,), place),)
        turn = InferRequest("m", "", inputs, sequence_id=7, sequence_start=start_flag, regions=True)
        send(router, turn, Sink())
        await until(lambda: a.taken == 1)
    finally:
        file.unlink()
    (taken, _), *_ = a.held
    assert (bytes(taken.inputs[0].data), taken.regions) == (b"12345678", False)
