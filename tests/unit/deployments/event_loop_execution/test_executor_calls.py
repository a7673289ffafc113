"""Executions on the event loop that call other models: the loop runs while they are suspended."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from app.core.tensors import InferResponse
from app.transport.loops.thread import LoopThread
from backends.base import Instance, Request
from backends.python.api import server_api
from deployments.bls.service import Connection, ModelCalls
from deployments.event_loop_execution import executor, policy
from deployments.event_loop_execution.policy import REQUIRED_RUNS
from tests.unit.bls_bench import SPEC
from tests.unit.deployments.bls.test_service import output, request
from tests.unit.deployments.execution.instance_bench import Bench, FakeBackend
from tests.unit.ensembles import Asked, Models, model
from tests.waiting import let_run, until


class CallingBackend(FakeBackend):
    """Calls model "m" in each execution."""

    eligible = True

    def __init__(self) -> None:
        super().__init__(self._call)
        self.found: list[Any] = []

    def may_call_models(self, instance: Instance) -> bool:
        return True

    def _call(self, requests: Sequence[Request]) -> None:
        self.found.append(request("m").exec())
        for each in requests:
            each.deliver(InferResponse(id=each.infer.id))


class Calling:
    """An instance that may execute on this loop, and the model that it calls."""

    def __init__(self) -> None:
        self.models = Models(m=model())
        self.backend = CallingBackend()
        self.bench = Bench(self.backend, decoupled=False)

    async def asked(self) -> Asked:
        await until(lambda: bool(self.models.asked))
        return self.models.asked.pop(0)

    async def execute(self, name: str) -> None:
        finished = len(self.bench.finished)
        self.bench.thread.execute(self.bench.batch(name))
        (await self.asked()).answer(output())
        await until(lambda: len(self.bench.finished) > finished)

    def thread(self) -> str:
        """Return the name of the thread of the last execution."""
        return self.backend.calls[-1][1]


@pytest.fixture
async def calling(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calling]:
    made = Calling()
    plane = LoopThread.__new__(LoopThread)  # around the loop that the test runs on
    plane.loop, plane._thread = asyncio.get_running_loop(), threading.current_thread()
    calls = ModelCalls(SPEC, plane)

    async def open_connection(spec: Any, cluster: Any) -> Connection:
        return Connection(cast(Any, made.models), cast(Any, None))

    monkeypatch.setattr(Connection, "open", open_connection)
    monkeypatch.setattr(server_api._Installed, "api", calls)
    # Whatever the machine.
    monkeypatch.setattr(policy, "SHORT_NS", 10**12)
    monkeypatch.setattr(policy, "LONG_NS", 10**12)
    made.bench.thread.start()
    made.bench.thread.wait_loaded()
    yield made
    await asyncio.to_thread(made.bench.thread.stop, 5)


async def move_to_the_loop(calling: Calling) -> None:
    for i in range(REQUIRED_RUNS):
        await calling.execute(str(i))
        assert calling.thread() == "m_0_0"
    assert calling.bench.thread.executes_on_loop


async def test_one_of_several_calling_instances_stays_on_its_thread(calling: Calling) -> None:
    calling.bench.thread.is_only_instance = False
    for i in range(REQUIRED_RUNS + 2):
        await calling.execute(str(i))
        assert calling.thread() == "m_0_0"


async def test_an_execution_on_the_loop_calls_a_model(calling: Calling) -> None:
    await move_to_the_loop(calling)
    await calling.execute("here")
    assert calling.thread() == threading.current_thread().name
    assert calling.bench.final("here").failure is None
    assert not any(found.has_error() for found in calling.backend.found)


async def test_executions_that_may_be_suspended_have_a_turn_each(
    calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "TURN_NS", 10**12)
    await move_to_the_loop(calling)
    bench = calling.bench
    bench.following = [bench.batch("b")]
    bench.thread.execute(bench.batch("a"))
    first = await calling.asked()
    first.answer(output())
    assert "a" in bench.responses and not calling.models.asked
    (await calling.asked()).answer(output())
    assert bench.final("b").failure is None


async def test_a_failed_call_on_the_loop_is_returned_to_the_model(calling: Calling) -> None:
    await move_to_the_loop(calling)
    calling.models.table = type(calling.models.table)()
    await calling.bench.execute("here")
    assert "'m' is not found" in calling.backend.found[-1].error().message()


async def test_other_responses_are_sent_while_an_execution_is_suspended(calling: Calling) -> None:
    await move_to_the_loop(calling)
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    bench.batch("other").requests[0].deliver(InferResponse(id="other"))
    await until(lambda: "other" in bench.responses)
    assert "waits" not in bench.responses
    asked.answer(output())
    await until(lambda: "waits" in bench.responses)


async def test_waiting_does_not_count_as_execution_time(
    calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: list[int] = []
    monkeypatch.setattr(policy.ExecutionHistory, "record", lambda _, busy_ns: busy.append(busy_ns))
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    await asyncio.sleep(0.05)  # the time that is not to count
    asked.answer(output())
    await until(lambda: bool(bench.finished))
    batch = bench.finished[-1]
    assert batch.end_ns - batch.start_ns - busy[0] >= 50_000_000


async def test_stop_waits_for_a_suspended_execution(calling: Calling) -> None:
    await move_to_the_loop(calling)
    bench = calling.bench
    bench.thread.execute(bench.batch("waits"))
    asked = await calling.asked()
    stopping = asyncio.create_task(asyncio.to_thread(bench.thread.stop, 5))
    await let_run()
    assert bench.thread.alive
    asked.answer(output())
    await stopping
    assert not bench.thread.alive
    assert bench.final("waits").failure is None
