"""Counters of several replicas, added up."""

import asyncio

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import unavailable
from app.ingress.service.replica_statistics import ReplicaStatistics, collect, merge
from tests.unit.app.routing_fakes import FakeChannel, counters, entry


def part(failures: dict[str, int] | None = None, pending: int = 0, **batches: int) -> ReplicaStatistics:
    """`b4=2`: two executions of 4 rows, one ns each for input, inference and output."""
    message = pb.ModelStatistics(name="m", version="1")
    for name, count in batches.items():
        duration = pb.StatisticDuration(count=count, ns=count)
        message.batch_stats.add(
            batch_size=int(name[1:]), compute_input=duration, compute_infer=duration, compute_output=duration
        )
    return ReplicaStatistics(message, failures or {}, pending)


async def test_collects_from_every_replica() -> None:
    channels = [FakeChannel(counters(success=2, pending=1)), FakeChannel(counters(success=3, pending=4))]
    total = merge(await collect(entry("m"), channels))
    assert (total.statistics.inference_stats.success.count, total.pending) == (5, 5)
    assert total.statistics.inference_stats.success.ns == 5000


async def test_without_replicas_there_are_zeros() -> None:
    total = merge(await collect(entry("m", 7), []))
    assert total.statistics == pb.ModelStatistics(name="m", version="7")
    assert (total.failures, total.pending) == ({}, 0)


@pytest.mark.parametrize("error", [unavailable("closed"), TimeoutError(), ConnectionResetError("gone")])
async def test_replica_that_is_going_away_is_left_out(error: Exception) -> None:
    total = merge(await collect(entry("m"), [FakeChannel(error), FakeChannel(counters(success=3))]))
    assert total.statistics.inference_stats.success.count == 3


async def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(KeyError):
        await collect(entry("m"), [FakeChannel(KeyError("a defect"))])


async def test_replicas_are_asked_side_by_side() -> None:
    class Slow(FakeChannel):
        async def control(self, *arguments: object, **options: object) -> object:
            waiting.append(1)
            while len(waiting) < 3:
                await asyncio.sleep(0)
            return self.answer

    waiting: list[int] = []
    channels = [Slow(counters(success=1)) for _ in range(3)]
    async with asyncio.timeout(5):
        total = merge(await collect(entry("m"), channels))
    assert total.statistics.inference_stats.success.count == 3


def test_every_counter_is_added() -> None:
    fields = [field.name for field in pb.InferStatistics.DESCRIPTOR.fields]
    parts = []
    for factor in (1, 10):
        message = pb.ModelStatistics(
            name="m",
            version="1",
            last_inference=100 * factor,
            inference_count=2 * factor,
            execution_count=factor,
        )
        for number, field in enumerate(fields, 1):
            duration = getattr(message.inference_stats, field)
            duration.count, duration.ns = number * factor, number * factor * 7
        parts.append(ReplicaStatistics(message, {"OTHER": factor, f"R{factor}": 1}, factor))
    total = merge(parts)
    assert total.statistics.last_inference == 1000, "the latest, not the sum"
    assert (total.statistics.inference_count, total.statistics.execution_count) == (22, 11)
    for number, field in enumerate(fields, 1):
        duration = getattr(total.statistics.inference_stats, field)
        assert (duration.count, duration.ns) == (number * 11, number * 77), field
    assert (total.failures, total.pending) == ({"OTHER": 11, "R1": 1, "R10": 1}, 11)
    assert parts[0].statistics.inference_count == 2, "merging changes what it was given"
    assert parts[0].failures == {"OTHER": 1, "R1": 1}


def test_batches_are_added_by_size() -> None:
    total = merge([part(b1=1, b4=2), part(b4=3, b8=1), part()])
    found = {batch.batch_size: batch for batch in total.statistics.batch_stats}
    assert {size: batch.compute_infer.count for size, batch in found.items()} == {1: 1, 4: 5, 8: 1}
    assert (found[4].compute_input.ns, found[4].compute_output.ns) == (5, 5)


def test_batches_are_listed_by_size() -> None:
    total = merge([part(b4=1), part(b1=1, b8=1), part(b2=1)])
    assert [batch.batch_size for batch in total.statistics.batch_stats] == [1, 2, 4, 8]
