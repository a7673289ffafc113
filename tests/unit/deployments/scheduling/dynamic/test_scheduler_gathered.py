"""Batches that the loop executes: once it has read what has arrived, and in that callback."""

import asyncio
from typing import Any, cast

import pytest

from app.core.observability.statistics import Statistics
from deployments.execution.instance_thread import InstanceThread
from deployments.scheduling.dynamic.batch_policy import BatchPolicy
from deployments.scheduling.dynamic.scheduler import DynamicScheduler
from deployments.scheduling.dynamic.serve_batch import ServeBatch
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import Answers, FakeServeBatch, HeldInstance, pending

ROWS = 4


class LoopInstance(HeldInstance):
    """Executes on the loop: at once where it may, later where the test says so."""

    executes_on_loop = True

    def __init__(self, scheduler: DynamicScheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.at_once: list[list[str]] = []
        scheduler.add_instance(cast(InstanceThread, self))

    def execute_at_once(self, batch: Any) -> None:
        self.execute(batch)
        self.at_once.append(self.ids[-1])
        self.finish()


class Bench:
    """A scheduler whose instances execute on the loop."""

    def __init__(self, instances: int = 1) -> None:
        self.answers = Answers()
        queue = RequestQueue(1000, 1 << 20)
        serve_batch = ServeBatch(ROWS, FakeServeBatch())
        self.scheduler = DynamicScheduler(Statistics(), queue, BatchPolicy(ROWS), serve_batch)
        self.instances = [LoopInstance(self.scheduler) for _ in range(instances)]
        self.submit("first")  # on its thread, as far as the scheduler knows
        for instance in self.instances:
            if instance.running is not None:
                instance.finish()

    def submit(self, *names: str) -> None:
        for name in names:
            self.scheduler.schedule(pending(self.answers, name))


async def test_what_has_arrived_is_executed_together_in_the_next_callback() -> None:
    bench = Bench()
    (instance,) = bench.instances
    bench.submit("a", "b")
    assert instance.ids == [["first"]]
    await asyncio.sleep(0)
    assert instance.at_once == [["a", "b"]]
    assert set(bench.answers.finals) == {"first", "a", "b"}


async def test_what_arrives_meanwhile_is_gathered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    (instance,) = bench.instances
    bench.submit("a")
    put = bench.answers.put

    def answered(request: Any, response: Any) -> None:
        put(request, response)
        if request.infer.id == "a":
            bench.submit("b", "c")

    monkeypatch.setattr(bench.answers, "put", answered)
    await asyncio.sleep(0)
    assert instance.at_once == [["a"]]
    await asyncio.sleep(0)
    assert instance.at_once == [["a"], ["b", "c"]]


async def test_a_full_batch_does_not_wait_for_the_callback() -> None:
    bench = Bench()
    (instance,) = bench.instances
    bench.submit("a", "b", "c", "d")
    assert instance.ids == [["first"], ["a", "b", "c", "d"]] and not instance.at_once
    instance.finish()


async def test_of_several_free_instances_none_waits_for_another() -> None:
    bench = Bench(2)
    bench.scheduler._shape_key = lambda request: (request.id,)
    bench.submit("a", "b")
    await asyncio.sleep(0)
    assert sorted(instance.ids[-1][0] for instance in bench.instances) == ["a", "b"]
    # Only the last one, when the others have theirs, may keep the loop.
    assert [instance.at_once for instance in bench.instances if instance.at_once] == [[["b"]]]
    (other,) = (instance for instance in bench.instances if instance.running is not None)
    other.finish()
