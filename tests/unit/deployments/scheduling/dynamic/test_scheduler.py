"""The direct scheduler and the dynamic batcher over instances that are released by hand."""

import asyncio
import gc
import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.observability.statistics import Statistics
from app.core.tensors import InferRequest, Tensor
from deployments.scheduling.base import DirectScheduler, Scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.scheduler import (
    GATHERED_FROM_NS,
    DynamicScheduler,
)
from deployments.scheduling.dynamic.serve_batch import MIN_EXECUTION_NS, ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import MS, Answers, FakeServeBatch, HeldInstance, offer, pending
from tests.waiting import until

MANY = 1 << 20
LONG_AGO = 1e-9
"""A deadline, in `time.monotonic` seconds, that is over."""


def direct(max_requests: int = MANY, max_bytes: int = MANY) -> DirectScheduler:
    return DirectScheduler(Statistics(), RequestQueue(max_requests, max_bytes))


def dynamic(
    max_rows: int = 4,
    preferred: tuple[int, ...] = (),
    max_delay_ns: int = 0,
    max_requests: int = MANY,
    serve_batch: FakeServeBatch | None = None,
) -> DynamicScheduler:
    executor = ServeBatch(max_rows, serve_batch or FakeServeBatch())
    policy = BatchPolicy(max_rows, preferred, max_delay_ns)
    return DynamicScheduler(Statistics(), RequestQueue(max_requests, MANY), policy, executor)


Make = Callable[..., DirectScheduler | DynamicScheduler]
MAKERS: list[Make] = [direct, dynamic]
both = pytest.mark.parametrize("make", MAKERS)


@pytest.fixture
def answers() -> Answers:
    return Answers()


def submit(scheduler: Scheduler, answers: Answers, *ids: str, **fields: Any) -> None:
    for request_id in ids:
        scheduler.schedule(pending(answers, request_id, **fields))


def executed(instance: HeldInstance) -> list[str]:
    return [request_id for batch in instance.ids for request_id in batch]


async def test_direct_executes_one_by_one_in_order(answers: Answers) -> None:
    scheduler = direct()
    submit(scheduler, answers, "a", "b", "c")
    assert scheduler.pending == 3
    (instance,) = offer(scheduler)
    for _ in range(3):
        instance.finish()
    assert instance.ids == [["a"], ["b"], ["c"]]
    assert list(answers.finals) == ["a", "b", "c"]
    assert scheduler.pending == 0 and instance.running is None


async def test_direct_uses_every_instance(answers: Answers) -> None:
    scheduler = direct()
    first, second = offer(scheduler, 2)
    submit(scheduler, answers, "a", "b", "c")
    assert sorted(first.ids + second.ids) == [["a"], ["b"]]
    first.finish()
    assert first.ids[-1] == ["c"]


@both
async def test_full_queue_refuses(make: Make, answers: Answers) -> None:
    scheduler = make(max_requests=2)
    offer(scheduler)
    submit(scheduler, answers, "running", "a", "b")
    for _ in range(3):
        with pytest.raises(InferError, match="Exceeds maximum queue size") as caught:
            submit(scheduler, answers, "refused")
    assert (caught.value.code, caught.value.reason) == (ErrorCode.UNAVAILABLE, FailureReason.REJECTED)
    assert scheduler.pending == 2


async def test_refusal_keeps_no_request_alive(answers: Answers) -> None:
    """An error that is raised twice holds the frames of both times, and with them the requests."""
    scheduler = direct(max_requests=1)
    offer(scheduler)
    submit(scheduler, answers, "running", "a")
    errors = []
    for _ in range(2):
        with pytest.raises(InferError) as caught:
            submit(scheduler, answers, "refused")
        errors.append(caught.value)
    assert errors[0] is not errors[1]


async def test_queue_is_bounded_by_bytes(answers: Answers) -> None:
    scheduler = direct(max_bytes=100)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "huge", nbytes=1000)  # alone, it may be of any size
    submit(scheduler, answers, "a", nbytes=60)
    with pytest.raises(InferError, match="Exceeds maximum queue size"):
        submit(scheduler, answers, "b", nbytes=60)
    submit(scheduler, answers, "c", nbytes=40)
    instance.finish()
    submit(scheduler, answers, "d", nbytes=60)
    assert scheduler.pending == 2


@both
async def test_cancelled_while_queued(make: Make, answers: Answers) -> None:
    scheduler = make(max_requests=2)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "running")
    cancelled = pending(answers, "cancelled", nbytes=8)
    scheduler.schedule(cancelled)
    submit(scheduler, answers, "a")
    for _ in range(2):  # the second time changes nothing
        scheduler.cancel(cancelled)
    assert answers.code("cancelled") is ErrorCode.CANCELLED
    assert answers.failure("cancelled").reason is FailureReason.CANCELED
    assert scheduler.pending == 1
    submit(scheduler, answers, "b")  # its place is free again
    while instance.running:
        instance.finish()
    assert executed(instance) == ["running", "a", "b"]
    assert (scheduler.pending, scheduler._queue.nbytes) == (0, 0)


async def test_cancellation_during_execution_is_left_to_the_backend(answers: Answers) -> None:
    scheduler = direct()
    (instance,) = offer(scheduler)
    request = pending(answers, "a")
    scheduler.schedule(request)
    scheduler.cancel(request)
    assert answers.finals == {}
    instance.finish()
    assert answers.code("a") is None


@both
async def test_expired_deadline_is_not_executed(make: Make, answers: Answers) -> None:
    scheduler = make()
    submit(scheduler, answers, "late", deadline=LONG_AGO)
    submit(scheduler, answers, "a", deadline=time.monotonic() + 60)
    late_too = pending(answers, "late too", deadline=LONG_AGO)
    scheduler.schedule(late_too)
    (instance,) = offer(scheduler)
    while instance.running:
        instance.finish()
    assert instance.ids == [["a"]]
    for request_id in ("late", "late too"):
        assert answers.failure(request_id).message == "Request timeout expired"
        assert answers.failure(request_id).reason is FailureReason.REJECTED
    scheduler.cancel(late_too)  # the client gives up as well
    assert (scheduler.pending, scheduler._queue.nbytes) == (0, 0)


async def test_cancelled_requests_are_released_while_the_instance_is_busy(answers: Answers) -> None:
    class Data(bytearray):
        """Bytes that can be watched."""

    scheduler = direct()
    offer(scheduler)
    submit(scheduler, answers, "running")
    watched = []
    for number in range(100):
        data = Data(100)
        watched.append(weakref.ref(data))
        request = pending(answers, str(number))
        request.infer = InferRequest("m", "", (Tensor("INPUT0", "UINT8", (100,), data),), id=str(number))
        scheduler.schedule(request)
        scheduler.cancel(request)
        del request, data
    gc.collect()
    assert sum(ref() is not None for ref in watched) <= 1
    assert len(scheduler._queue.head(100)) <= 1


async def test_lone_request_skips_serve_batch(answers: Answers) -> None:
    serve_batch = FakeServeBatch()
    scheduler = dynamic(serve_batch=serve_batch)
    (instance,) = offer(scheduler)
    for request_id in "abc":
        submit(scheduler, answers, request_id)
        await until(lambda: instance.running is not None)
        instance.finish(took_ns=2 * MIN_EXECUTION_NS)
    assert instance.ids == [["a"], ["b"], ["c"]]
    assert serve_batch.rows == []


async def test_queued_requests_execute_together(answers: Answers) -> None:
    scheduler = dynamic(max_rows=4)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first", *"abcdef")
    while instance.running:
        instance.finish()
    assert instance.ids == [["first"], ["a", "b", "c", "d"], ["e", "f"]]
    assert [batch.rows for batch in instance.batches] == [1, 4, 2]


async def test_long_batches_go_through_serve_batch(answers: Answers) -> None:
    serve_batch = FakeServeBatch()
    scheduler = dynamic(max_rows=4, serve_batch=serve_batch)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first", *"abcdef")
    for _ in range(2):
        instance.finish(took_ns=2 * MIN_EXECUTION_NS)
        await until(lambda: instance.running is not None)
    instance.finish(took_ns=2 * MIN_EXECUTION_NS)
    await until(lambda: not scheduler._serve_batch._running)
    assert instance.ids == [["first"], ["a", "b", "c", "d"], ["e", "f"]]
    assert serve_batch.rows == [4, 2]


async def test_callers_of_a_long_execution_share_the_next_batch(answers: Answers) -> None:
    """Each asks in a callback of its own, as soon as it has its answer."""
    scheduler = dynamic(max_rows=8)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first")
    instance.finish(took_ns=GATHERED_FROM_NS)
    for request_id in "abc":
        asyncio.get_running_loop().call_soon(submit, scheduler, answers, request_id)
    await until(lambda: instance.running is not None)
    assert instance.ids == [["first"], ["a", "b", "c"]]
    instance.finish(took_ns=GATHERED_FROM_NS - 1)
    submit(scheduler, answers, "d")
    submit(scheduler, answers, "e")
    assert instance.ids[2:] == [["d"]], "a short execution does not wait"


async def test_failing_serve_batch_loses_no_request(answers: Answers) -> None:
    serve_batch = FakeServeBatch()
    serve_batch.error = RuntimeError("no replica")
    scheduler = dynamic(serve_batch=serve_batch)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first", "a", "b")
    instance.finish(took_ns=2 * MIN_EXECUTION_NS)
    await until(lambda: instance.running is not None)
    instance.finish()
    assert sorted(answers.finals) == ["a", "b", "first"]


async def test_other_shapes_wait_for_the_next_batch(answers: Answers) -> None:
    scheduler = dynamic(max_rows=8)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first")
    for request_id, width in (("a", 2), ("b", 2), ("c", 3), ("d", 2)):
        submit(scheduler, answers, request_id, shapes=((width,),))
    while instance.running:
        instance.finish()
    assert instance.ids == [["first"], ["a", "b"], ["c"], ["d"]]


async def test_any_load_keeps_the_order_and_the_limits(answers: Answers) -> None:
    choice = random.Random(0)
    scheduler = dynamic(max_rows=8, preferred=(4, 8))
    (instance,) = offer(scheduler)
    sizes = {str(number): choice.randint(1, 8) for number in range(300)}
    for request_id, rows in sizes.items():
        submit(scheduler, answers, request_id, rows=rows, shapes=(choice.randint(1, 2),))
        if choice.random() < 0.3 and instance.running:
            instance.finish(took_ns=0)
    while instance.running:
        instance.finish(took_ns=0)
    assert executed(instance) == list(sizes)
    for ids, batch in zip(instance.ids, instance.batches, strict=True):
        assert batch.rows == sum(sizes[request_id] for request_id in ids) <= 8
        assert len({request.shapes for request in batch.requests}) == 1


async def test_more_cancelled_requests_than_a_batch_has_rows(answers: Answers) -> None:
    """None of them may get into a batch: answering one twice would fail those it shares the batch with."""
    scheduler = dynamic(max_rows=2)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "running")
    gone = [pending(answers, f"gone {number}") for number in range(5)]
    for request in gone:
        scheduler.schedule(request)
    submit(scheduler, answers, *"abcdefgh")
    for request in gone:
        scheduler.cancel(request)
    while instance.running:
        instance.finish()
    assert instance.ids == [["running"], ["a", "b"], ["c", "d"], ["e", "f"], ["g", "h"]]


async def test_more_expired_requests_than_a_batch_has_rows(answers: Answers) -> None:
    scheduler = dynamic(max_rows=2)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "running")
    submit(scheduler, answers, *(f"late {number}" for number in range(5)), deadline=LONG_AGO)
    submit(scheduler, answers, "a")
    while instance.running:
        instance.finish()
    assert instance.ids == [["running"], ["a"]]
    assert len(answers.finals) == 7


async def test_delay_waits_for_more_and_then_no_longer(answers: Answers) -> None:
    scheduler = dynamic(max_rows=4, max_delay_ns=20 * MS)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "a", "b")
    assert instance.ids == []
    await until(lambda: instance.running is not None)
    waited_ns = time.monotonic_ns() - instance.batches[0].requests[0].arrival_ns
    assert waited_ns >= 20 * MS
    assert instance.ids == [["a", "b"]]


async def test_full_batch_does_not_wait_for_the_delay(answers: Answers) -> None:
    scheduler = dynamic(max_rows=2, max_delay_ns=60_000 * MS)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "a", "b", "c")
    assert instance.ids == [["a", "b"]]
    instance.finish()
    assert instance.running is None and scheduler.pending == 1
    submit(scheduler, answers, "d")
    assert instance.ids == [["a", "b"], ["c", "d"]]


async def test_delay_after_a_cancellation_executes_nothing(answers: Answers) -> None:
    scheduler = dynamic(max_rows=2, max_delay_ns=5 * MS)
    (instance,) = offer(scheduler)
    only = pending(answers, "only")
    scheduler.schedule(only)
    scheduler.cancel(only)
    await asyncio.sleep(0.01)  # the timer of the delay would have expired
    assert instance.ids == []
    submit(scheduler, answers, "a", "b")
    assert instance.ids == [["a", "b"]]


async def test_statistics_count_successful_requests(answers: Answers) -> None:
    scheduler = dynamic(max_rows=4)
    (instance,) = offer(scheduler)
    submit(scheduler, answers, "first", "a", "b", "c")
    instance.finish(took_ns=3000)
    instance.finish(failing=["b"], took_ns=6000)
    submit(scheduler, answers, "x")
    instance.finish(failing=["x"])
    counters = scheduler._statistics.report()
    assert (counters.inference_count, counters.execution_count) == (4, 2)
    assert counters.compute_infer.count == 3  # b and x failed
    assert counters.compute_infer.ns == 1000 + 2 * 2000
    assert {size: batch.compute_infer.count for size, batch in counters.batches.items()} == {1: 1, 3: 1}
