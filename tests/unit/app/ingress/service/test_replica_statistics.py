"""Reports of replicas: asking for them, and writing them as messages of the statistics extension."""

import asyncio
from typing import cast

import msgspec
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.errors import unavailable
from app.core.observability.statistics import (
    MAX_RESPONSES,
    BatchDurations,
    Duration,
    ReplicaReport,
    ResponseDurations,
    merge,
    record_response,
)
from app.ingress.service.replica_statistics import collect, statistics_message
from app.transport.channel.client import Channel
from tests.unit.app.routing_fakes import FakeChannel, counters, entry


async def test_every_replica_is_asked() -> None:
    channels = [FakeChannel(counters(success=2, pending=1)), FakeChannel(counters(success=3, pending=4))]
    total = merge(await collect(cast(list[Channel], channels)))
    assert (total.success, total.pending) == (Duration(5, 5000), 5)


@pytest.mark.parametrize("error", [unavailable("closed"), TimeoutError(), ConnectionResetError("gone")])
async def test_replica_that_does_not_answer_is_left_out(error: Exception) -> None:
    total = merge(await collect(cast(list[Channel], [FakeChannel(error), FakeChannel(counters(success=3))])))
    assert total.success.count == 3


async def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(KeyError):
        await collect(cast(list[Channel], [FakeChannel(KeyError("a defect"))]))


async def test_replicas_are_asked_concurrently() -> None:
    class Slow(FakeChannel):
        async def control(self, *arguments: object, **options: object) -> object:
            waiting.append(1)
            while len(waiting) < 3:
                await asyncio.sleep(0)
            return msgspec.to_builtins(self.answer)

    waiting: list[int] = []
    channels = [Slow(counters(success=1)) for _ in range(3)]
    async with asyncio.timeout(60):
        total = merge(await collect(cast(list[Channel], channels)))
    assert total.success.count == 3


def test_message_without_requests_is_zero() -> None:
    message = statistics_message(entry("m", 7), ReplicaReport())
    assert (message.name, message.version, message.last_inference) == ("m", "7", 0)
    assert list(message.batch_stats) == []
    names = [field.name for field in pb.InferStatistics.DESCRIPTOR.fields]
    assert message.inference_stats == pb.InferStatistics(**{name: {} for name in names})


def test_message_has_every_counter() -> None:
    names = [field.name for field in pb.InferStatistics.DESCRIPTOR.fields]
    report = counters(**{name: number for number, name in enumerate(names, 1)})
    report.last_inference_ns, report.inference_count, report.execution_count = 100_999_999, 20, 10
    report.batches = {4: BatchDurations(Duration(1, 2), Duration(3, 4), Duration(5, 6)), 1: BatchDurations()}
    message = statistics_message(entry("m"), report)
    assert (message.last_inference, message.inference_count, message.execution_count) == (100, 20, 10)
    for number, name in enumerate(names, 1):
        duration = getattr(message.inference_stats, name)
        assert (duration.count, duration.ns) == (number, 1000 * number), name
    one, four = message.batch_stats
    assert (one.batch_size, one.compute_infer.count) == (1, 0)
    assert four == pb.InferBatchStatistics(
        batch_size=4,
        compute_input={"count": 1, "ns": 2},
        compute_infer={"count": 3, "ns": 4},
        compute_output={"count": 5, "ns": 6},
    )


def test_times_of_responses_are_added_and_written_by_their_number() -> None:
    first, second = ReplicaReport(), ReplicaReport()
    record_response(first.responses, 0, "success", 1, 2)
    record_response(first.responses, 10, "fail", 3, 0)
    record_response(second.responses, 0, "cancel", 4, 5)
    message = statistics_message(entry("m"), merge([first, second]))
    assert dict(message.response_stats) == {
        "0": pb.InferResponseStatistics(
            compute_infer={"count": 1, "ns": 1},
            compute_output={"count": 1, "ns": 2},
            success={"count": 1, "ns": 3},
            fail={},
            empty_response={},
            cancel={"count": 1, "ns": 9},
        ),
        "10": pb.InferResponseStatistics(
            compute_infer={"count": 1, "ns": 3},
            compute_output={},
            success={},
            fail={"count": 1, "ns": 3},
            empty_response={},
            cancel={},
        ),
    }


def test_times_of_responses_are_bounded() -> None:
    recorded: dict[int, ResponseDurations] = {}
    for number in range(MAX_RESPONSES + 3):
        record_response(recorded, number, "empty_response", 1, 0)
    assert len(recorded) == MAX_RESPONSES
