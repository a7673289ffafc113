"""Instance threads whose backend may execute on the event loop."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from app.core.errors import ErrorCode, InferError
from backends.base import Request
from deployments.event_loop_execution import executor, policy
from deployments.event_loop_execution.policy import REQUIRED_RUNS
from deployments.execution.instance_thread import Batch
from tests.unit.deployments.execution.instance_bench import (
    Behaviour,
    Bench,
    FakeBackend,
    Start,
    answer_all,
    benches,
)
from tests.waiting import until


@pytest.fixture
async def start(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    for limit in ("SHORT_NS", "LONG_NS"):  # whatever the machine
        monkeypatch.setattr(policy, limit, 10**12)

    async with benches() as started:

        def begin(
            execute: Behaviour, decoupled: bool = False, eligible: bool = True, setting: str = "true"
        ) -> Bench:
            backend = FakeBackend(execute)
            backend.eligible = eligible
            return started(backend, decoupled, setting)

        yield begin


def last_threads(bench: Bench, count: int) -> list[str]:
    """Return the names of the threads of the last executions."""
    return [thread for _, thread in bench.thread._backend.calls[-count:]]  # type: ignore[attr-defined]


async def move_to_loop(bench: Bench) -> None:
    for i in range(REQUIRED_RUNS):
        assert not bench.thread.executes_on_loop
        await bench.execute(str(i))
    assert bench.thread.executes_on_loop


async def on_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch, turn_ns: int, execute: Behaviour = answer_all
) -> Bench:
    """Start an instance that executes on the loop, for so long a turn."""
    monkeypatch.setattr(executor, "TURN_NS", turn_ns)
    bench = start(execute)
    await move_to_loop(bench)
    return bench


async def test_short_executions_move_to_the_loop(start: Start) -> None:
    bench = start(answer_all)
    await move_to_loop(bench)
    assert set(last_threads(bench, REQUIRED_RUNS)) == {"m_0_0"}
    bench.order.clear()
    await bench.execute("a", "b")
    assert last_threads(bench, 1) == [threading.current_thread().name]
    assert bench.order == ["a", "b", "finished"]


async def test_a_batch_may_be_executed_before_the_call_returns(start: Start) -> None:
    bench = start(answer_all)
    bench.thread.execute_at_once(bench.batch("thread"))
    assert not bench.finished
    await until(lambda: len(bench.finished) == 1)
    for i in range(REQUIRED_RUNS - 1):
        await bench.execute(str(i))
    bench.order.clear()
    bench.thread.execute_at_once(bench.batch("a", "b"))
    assert bench.order == ["a", "b", "finished"]


async def in_turns(bench: Bench, *names: str) -> list[str]:
    """Execute batches that wait for each other; return what happened, "turn" at the end of each turn."""
    bench.order.clear()
    first, *bench.following = [bench.batch(name) for name in names]
    bench.thread.execute(first)
    for _ in range(len(names) + 1):
        await asyncio.sleep(0)
        bench.order.append("turn")
    return [each for each in bench.order if each != "finished"]


async def test_batches_that_wait_follow_in_the_same_turn_of_the_loop(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await on_loop(start, monkeypatch, 10**12)
    assert await in_turns(bench, "a", "b", "c") == ["a", "b", "c", *["turn"] * 4]
    assert [len(batch.requests) for batch in bench.finished[-3:]] == [1, 1, 1]
    bench.order.clear()
    bench.thread.execute(bench.batch("later"))
    assert not bench.order, "not before the call has returned"
    await until(lambda: "later" in bench.order)


async def test_a_turn_of_the_loop_ends_after_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = await on_loop(start, monkeypatch, 0)
    assert await in_turns(bench, "a", "b", "c") == ["a", "turn", "b", "turn", "c", "turn", "turn"]


async def test_a_failed_batch_ends_no_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(requests: Sequence[Request]) -> None:
        if requests[0].infer.id == "bad":
            raise ValueError("a bad input")
        answer_all(requests)

    bench = await on_loop(start, monkeypatch, 10**12, execute)
    assert (await in_turns(bench, "a", "bad", "c"))[:3] == ["a", "bad", "c"]
    assert bench.error("bad").message == "a bad input"
    assert bench.final("a").failure is bench.final("c").failure is None


async def test_a_batch_is_executed_that_a_failed_report_has_scheduled(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await on_loop(start, monkeypatch, 10**12)
    on_the_loop = bench.thread._loop_executor
    assert on_the_loop is not None
    report = on_the_loop._report

    def failing(batch: Batch) -> None:
        report(batch)
        if batch.requests[0].infer.id == "a":
            raise RuntimeError("a fault of the report")

    monkeypatch.setattr(on_the_loop, "_report", failing)
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    assert await in_turns(bench, "a", "b", "c") == ["a", "turn", "b", "c", *["turn"] * 3]
    assert len(reported) == 1


async def test_a_turn_ends_with_what_goes_back_to_the_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = await on_loop(start, monkeypatch, 10**12)
    monkeypatch.setattr(policy, "LONG_NS", 0)
    await in_turns(bench, "long", "b")
    await until(lambda: "b" in bench.responses)
    assert last_threads(bench, 2) == [threading.current_thread().name, "m_0_0"]


async def test_a_long_execution_on_the_loop_goes_back_to_the_thread(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start(answer_all)
    await move_to_loop(bench)
    monkeypatch.setattr(policy, "LONG_NS", 0)
    await bench.execute("long")
    assert last_threads(bench, 1) == [threading.current_thread().name]
    for i in range(2 * REQUIRED_RUNS):
        await bench.execute(f"again {i}")
    assert set(last_threads(bench, 2 * REQUIRED_RUNS)) == {"m_0_0"}
    assert bench.thread.executes_on_loop


async def test_a_failure_on_the_loop_fails_its_batch_only(start: Start) -> None:
    def execute(requests: Sequence[Request]) -> None:
        if requests[0].infer.id == "bad":
            sys.exit(3)
        answer_all(requests)

    bench = start(execute)
    await move_to_loop(bench)
    await bench.execute("bad")
    assert last_threads(bench, 1) == [threading.current_thread().name]
    assert bench.error("bad").code is ErrorCode.INTERNAL
    await bench.execute("good")
    assert bench.final("good").failure is None


@pytest.mark.parametrize(
    ("eligible", "decoupled", "setting"),
    [(False, False, "true"), (True, True, "true"), (True, False, "false")],
)
async def test_other_instances_stay_on_their_thread(
    start: Start, eligible: bool, decoupled: bool, setting: str
) -> None:
    bench = start(answer_all, decoupled, eligible, setting)
    for i in range(REQUIRED_RUNS + 2):
        await bench.execute(str(i))
    assert set(last_threads(bench, REQUIRED_RUNS + 2)) == {"m_0_0"}


async def test_a_setting_that_is_no_boolean_fails_the_load(start: Start) -> None:
    with pytest.raises(InferError, match="'event-loop': failed to convert 'maybe' to boolean"):
        start(answer_all, setting="maybe")


async def test_a_batch_scheduled_before_the_end_is_not_executed(start: Start) -> None:
    bench = start(answer_all)
    await move_to_loop(bench)
    bench.thread.execute(bench.batch("late"))
    bench.thread.stop(5)  # before the loop runs the batch
    await asyncio.sleep(0)
    assert "late" not in bench.responses
