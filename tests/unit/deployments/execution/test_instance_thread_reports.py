"""When a batch is reported, if its instance has the next one already."""

import asyncio
import queue
from collections.abc import AsyncIterator, Sequence

import pytest

from backends.base import Instance, Request
from deployments.execution import instance_thread
from tests.unit.deployments.execution.instance_bench import Bench, FakeBackend, answer_all
from tests.waiting import until


class Computing(FakeBackend):
    """Begins to compute when a batch is told to, and ends when it is told to."""

    begins_compute = True

    def __init__(self) -> None:
        super().__init__(answer_all)
        self.begin: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.end: queue.SimpleQueue[None] = queue.SimpleQueue()

    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        if self.begin.get(timeout=60):
            instance.begin_compute()
        self.end.get(timeout=60)
        self.execute(requests)


@pytest.fixture
async def computing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Computing, Bench]]:
    # However busy the machine is, these executions are not long: then the report would precede the response.
    monkeypatch.setattr(instance_thread, "_LONG_NS", 3_600_000_000_000)
    backend = Computing()
    bench = Bench(backend, decoupled=False)
    bench.thread.start()
    bench.thread.wait_loaded()
    yield backend, bench
    await asyncio.to_thread(bench.thread.stop, 5)


async def test_batch_is_reported_when_the_next_one_has_its_inputs(
    computing: tuple[Computing, Bench],
) -> None:
    backend, bench = computing
    bench.thread.execute(bench.batch("a"))
    bench.thread.execute(bench.batch("b"))
    backend.begin.put(True)
    backend.end.put(None)
    await until(lambda: bench.thread.instance.deferred_completion is not None)
    await asyncio.sleep(0)
    assert bench.order == []
    backend.begin.put(True)
    await until(lambda: bench.order == ["a", "finished"])
    backend.end.put(None)
    await until(lambda: bench.order == ["a", "finished", "b", "finished"])


async def test_batch_is_reported_although_the_next_one_never_computes(
    computing: tuple[Computing, Bench],
) -> None:
    backend, bench = computing
    bench.thread.execute(bench.batch("a"))
    bench.thread.execute(bench.batch("b"))
    for begins in (True, False):
        backend.begin.put(begins)
        backend.end.put(None)
    await until(lambda: bench.order.count("finished") == 2)
    assert [name for name in bench.order if name != "finished"] == ["a", "b"]


async def test_batch_is_reported_although_the_instance_ends(computing: tuple[Computing, Bench]) -> None:
    backend, bench = computing
    bench.thread.execute(bench.batch("a"))
    bench.thread._work.put(None)
    backend.begin.put(True)
    backend.end.put(None)
    await until(lambda: bench.order == ["a", "finished"])
