"""The batch that the dynamic batcher hands to a busy instance."""

import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from app.core.observability.statistics import Statistics
from deployments.execution.instance_thread import InstanceThread
from deployments.scheduling.base import Scheduler
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.policy_queue import PolicyQueue, QueuePolicies
from deployments.scheduling.dynamic.scheduler import PREPARED_FROM_NS, DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import Answers, FakeServeBatch, HeldInstance, pending
from tests.waiting import until

LONG = PREPARED_FROM_NS
ROWS = 4
PLAIN = BatchPolicy(ROWS)


class EagerInstance(HeldInstance):
    """May be handed a batch, not two, while it executes another; goes on with it by itself."""

    accepts_prefetch = True

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.next: list[Any] = []
        scheduler.add_instance(cast(InstanceThread, self))

    def execute(self, batch: Any) -> None:
        if self.running is None:
            super().execute(batch)
        else:
            assert not self.next, "two batches ahead"
            self.next.append(batch)

    def end(self, took_ns: int = LONG) -> None:
        """End the execution; the next one, if there is any, began before the scheduler hears of it."""
        ended, self.running = self.running, None
        begun = self.next.pop() if self.next else None
        self.running = ended
        self.finish(took_ns=took_ns)
        if begun is not None:
            assert self.running is None, "handed a batch although it had begun another"
            super().execute(begun)

    @property
    def ahead(self) -> list[list[str]]:
        return [[each.infer.id for each in batch.requests] for batch in self.next]


class Bench:
    """A scheduler with one instance, whose first execution was long."""

    def __init__(
        self,
        queue: RequestQueue | None = None,
        took_ns: int = LONG,
        policy: BatchPolicy = PLAIN,
        **fields: Any,
    ) -> None:
        self.answers = Answers()
        self.serve_batch = FakeServeBatch()
        queue = RequestQueue(1000, 1 << 20) if queue is None else queue
        serve_batch = ServeBatch(ROWS, self.serve_batch)
        self.scheduler = DynamicScheduler(Statistics(), queue, policy, serve_batch, **fields)
        self.instance = EagerInstance(self.scheduler)
        self.submit("first")
        self.instance.end(took_ns)
        self.submit("running")

    def submit(self, *ids: str, **fields: Any) -> None:
        for request_id in ids:
            self.scheduler.schedule(pending(self.answers, request_id, **fields))

    async def running(self) -> "Bench":
        await until(lambda: self.instance.running is not None)
        return self

    async def settle(self) -> None:
        """Let what was handed to `@serve.batch` come through."""
        await until(lambda: len(self.scheduler._serve_batch._running) == len(self.instance.next))


async def test_full_batch_is_prefetched() -> None:
    bench = await Bench().running()
    bench.submit(*"abc")
    await bench.settle()
    assert bench.instance.ahead == [] and bench.scheduler.pending == 3
    bench.submit("d", "e")
    await until(lambda: bool(bench.instance.next))
    assert bench.instance.ahead == [["a", "b", "c", "d"]] and bench.scheduler.pending == 1
    assert bench.serve_batch.rows == [ROWS]
    bench.submit(*"fghi")
    assert bench.scheduler.pending == 5, "one batch ahead, not two"
    bench.instance.end()
    await until(lambda: bool(bench.instance.next))
    assert bench.instance.ids[2:] == [["a", "b", "c", "d"]] and bench.instance.ahead == [["e", "f", "g", "h"]]
    bench.instance.end()
    bench.instance.end()
    await bench.running()
    assert bench.instance.ids[3:] == [["e", "f", "g", "h"], ["i"]]
    bench.instance.end()
    assert list(bench.answers.finals) == ["first", "running", *"abcdefghi"]


async def test_largest_preferred_size_is_prefetched() -> None:
    """`dynamic_batching {}` prefers max_batch_size: Triton writes it into the configuration."""
    bench = await Bench(policy=BatchPolicy(ROWS, preferred=(ROWS,))).running()
    bench.submit(*"abcd")
    await until(lambda: bool(bench.instance.next))
    assert bench.instance.ahead == [["a", "b", "c", "d"]]


async def test_smaller_preferred_size_is_not_prefetched() -> None:
    bench = await Bench(policy=BatchPolicy(2 * ROWS, preferred=(ROWS,))).running()
    bench.submit(*"abcdefg")
    await bench.settle()
    assert bench.instance.ahead == [] and bench.scheduler.pending == 7


async def test_prefetched_requests_count_as_queued_until_they_execute() -> None:
    bench = await Bench().running()
    requests = [pending(bench.answers, request_id) for request_id in "abcd"]
    for request in requests:
        bench.scheduler.schedule(request)
    await until(lambda: bool(bench.instance.next))
    before = time.monotonic_ns()
    bench.instance.end()
    assert all(request.dispatch_ns >= before for request in requests)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Bench(took_ns=LONG - 1), id="short executions"),
        pytest.param(lambda: Bench(ordered=100), id="ordered responses"),
        pytest.param(
            lambda: Bench(PolicyQueue(100, 1 << 20, QueuePolicies(levels=2, default_level=2))),
            id="priorities",
        ),
    ],
)
async def test_batch_that_may_change_is_not_prefetched(make: Callable[[], Bench]) -> None:
    bench = await make().running()
    bench.submit(*"abcdefgh")
    await bench.settle()
    assert bench.instance.ahead == [] and bench.scheduler.pending == 8


async def test_requests_with_deadlines_are_not_prefetched() -> None:
    bench = await Bench().running()
    bench.submit(*"abc")
    bench.submit("d", deadline=time.monotonic() + 60)
    await bench.settle()
    assert bench.instance.ahead == [] and bench.scheduler.pending == 4


async def test_cancelled_requests_do_not_fill_a_prefetched_batch() -> None:
    bench = await Bench().running()
    cancelled = pending(bench.answers, "a")
    bench.scheduler.schedule(cancelled)
    bench.submit(*"bc")
    bench.scheduler.cancel(cancelled)
    bench.submit("d")
    await bench.settle()
    assert bench.instance.ahead == []
    bench.submit("e")
    await until(lambda: bool(bench.instance.next))
    assert bench.instance.ahead == [["b", "c", "d", "e"]]


async def test_removed_instance_finishes_its_prefetched_batch() -> None:
    bench = await Bench().running()
    bench.submit(*"abcdefgh")
    await until(lambda: bool(bench.instance.next))
    gone = bench.scheduler.remove_instance(cast(InstanceThread, bench.instance))
    bench.instance.end()
    assert not gone.done() and bench.instance.ahead == []
    bench.instance.end()
    assert gone.done() and bench.instance.ids[2:] == [["a", "b", "c", "d"]]
    assert bench.scheduler.pending == 4
