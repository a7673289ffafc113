"""Executions that wait for responses: on a thread by blocking, on an event loop by being suspended."""

import asyncio
import threading
import time
from typing import Any

import pytest

from app.core.tensors import InferResponse
from app.transport.loops.suspension import ResponseFuture, run_suspendable, wait_time
from app.transport.loops.thread import LoopThread
from app.transport.loops.watchdog import LoopWatchdog
from backends.python.api.event_loop import EventLoop
from deployments.bls.service import ModelCalls
from tests.unit.bls_bench import SPEC


def test_a_thread_blocks_until_the_response_is_set() -> None:
    response = ResponseFuture[InferResponse]()
    threading.Timer(0.01, response.set, [InferResponse(id="x")]).start()
    before = wait_time.ns
    assert response.wait().id == "x"
    assert wait_time.ns > before


async def test_the_loop_runs_while_an_execution_is_suspended() -> None:
    responses: list[ResponseFuture[InferResponse]] = []
    seen: list[Any] = []

    def execute(count: int) -> None:
        for _ in range(count):
            responses.append(ResponseFuture())
            seen.append((responses[-1].wait().id, threading.get_ident()))

    run_suspendable(LoopWatchdog("m"), execute, 2)
    for name in ("first", "second"):
        await asyncio.sleep(0)
        responses[-1].set(InferResponse(id=name))
    assert seen == [("first", threading.get_ident()), ("second", threading.get_ident())]


async def test_a_response_that_is_set_already_is_returned_at_once() -> None:
    seen: list[str] = []

    def execute() -> None:
        response = ResponseFuture[InferResponse]()
        response.set(InferResponse(id="x"))
        seen.append(response.wait().id)

    run_suspendable(LoopWatchdog("m"), execute)
    assert seen == ["x"]


@pytest.mark.parametrize("computes", [False, True])
def test_idle_time_of_a_coroutine_on_its_thread_counts_as_waiting(computes: bool) -> None:
    calls, loop = ModelCalls(SPEC, LoopThread.__new__(LoopThread)), EventLoop("m asyncio")

    async def execute() -> int:
        end = time.thread_time_ns() + 50_000_000
        while computes and time.thread_time_ns() < end:
            pass
        await asyncio.sleep(0 if computes else 0.05)
        return 7

    before, began = wait_time.ns, time.monotonic_ns()
    assert calls.run(execute(), loop) == 7
    took, waiting = time.monotonic_ns() - began, wait_time.ns - before
    assert took - waiting >= 50_000_000 if computes else waiting >= 40_000_000
    loop.close()
