"""The batch that takes queued requests when its instance may execute at last."""

from typing import Any

import pytest

from app.core.observability.statistics import Statistics
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import Answers, FakeServeBatch, HeldInstance, offer, pending

MANY = 1 << 20


class Waiting:
    """A batcher whose first instance has been given the request "a", and must wait."""

    def __init__(self, policy: BatchPolicy, ordered: int = 0, instances: int = 1) -> None:
        self.answers = Answers()
        queue, executor = RequestQueue(MANY, MANY), ServeBatch(policy.max_rows, FakeServeBatch())
        self.scheduler = DynamicScheduler(Statistics(), queue, policy, executor, ordered=ordered)
        self.instances = offer(self.scheduler, instances)
        for instance in self.instances:
            instance.may_wait = True
        self.submit("a")
        (self.instance,) = (instance for instance in self.instances if instance.running)

    def submit(self, request_id: str, **fields: Any) -> None:
        self.scheduler.schedule(pending(self.answers, request_id, **{"shapes": (1,), **fields}))

    def begin(self) -> list[str]:
        self.scheduler.begins(running(self.instance))
        return ids(self.instance)


def running(instance: HeldInstance) -> Any:
    assert instance.running is not None
    return instance.running


def ids(instance: HeldInstance) -> list[str]:
    batch = running(instance)
    assert batch.rows == sum(request.rows for request in batch.requests)
    return [request.infer.id for request in batch.requests]


async def test_requests_are_added_in_order_while_they_fit() -> None:
    waiting = Waiting(BatchPolicy(4))
    waiting.submit("b")
    waiting.submit("c", rows=2)
    waiting.submit("d")
    assert waiting.begin() == ["a", "b", "c"] and waiting.scheduler.pending == 1
    waiting.instance.finish()
    assert list(waiting.answers.finals) == ["a", "b", "c"] and ids(waiting.instance) == ["d"]


async def test_executing_batch_gets_no_more() -> None:
    waiting = Waiting(BatchPolicy(4))
    assert waiting.begin() == ["a"]
    waiting.submit("b")
    assert waiting.begin() == ["a"]


async def test_instance_that_ends_leaves_requests_to_a_batch_that_waits_already() -> None:
    waiting = Waiting(BatchPolicy(4), instances=2)
    waiting.begin()
    waiting.submit("b")
    (other,) = (instance for instance in waiting.instances if instance is not waiting.instance)
    waiting.submit("c")
    waiting.submit("d", rows=3)
    waiting.instance.finish()
    assert ids(other) == ["b", "c"] and ids(waiting.instance) == ["d"]


async def test_cancelled_batch_gets_no_requests() -> None:
    waiting = Waiting(BatchPolicy(4))
    waiting.submit("b")
    dropped = waiting.instance.finish()  # it has not begun
    assert len(dropped.requests) == 1 and ids(waiting.instance) == ["b"]


@pytest.mark.parametrize("fields", [{"shapes": (2,)}, {"rows": 4}])
async def test_what_does_not_fit_stays_queued(fields: dict[str, Any]) -> None:
    waiting = Waiting(BatchPolicy(4))
    waiting.submit("b", **fields)
    waiting.submit("c")
    assert waiting.begin() == ["a"] and waiting.scheduler.pending == 2


async def test_batch_gets_a_preferred_size() -> None:
    waiting = Waiting(BatchPolicy(8, preferred=(2,)))
    waiting.submit("b")
    waiting.submit("c")
    assert waiting.begin() == ["a", "b"]


async def test_no_more_start_than_may_wait_for_their_order() -> None:
    waiting = Waiting(BatchPolicy(4), ordered=1)
    waiting.submit("b")
    assert waiting.begin() == ["a"]


async def test_cancelled_requests_are_not_added() -> None:
    waiting = Waiting(BatchPolicy(4))
    cancelled = pending(waiting.answers, "b", shapes=(1,))
    waiting.scheduler.schedule(cancelled)
    cancelled.cancelled = True
    waiting.scheduler.cancel(cancelled)
    waiting.submit("c")
    assert waiting.begin() == ["a", "c"]
