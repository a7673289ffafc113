"""The router and the requests of sequences."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.sequences import END_SEQUENCES
from app.core.tensors import InferRequest, RegionSlice, Tensor
from app.ray_adapter import replicas
from app.routing.router import Router
from app.transport.memory.client_regions import SHM_DIRECTORY
from tests.unit.app.routing.conftest import Sink, Start
from tests.unit.app.routing.test_router import apply, entry, handles, router, send, table  # noqa: F401
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
    await asyncio.wait_for(applying, 5)
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
