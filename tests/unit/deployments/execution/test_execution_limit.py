"""Executions that exceed their time limit: their requests fail, and what executed them is replaced."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from backends.base import Instance, Request
from deployments.execution.execution_limit import ExecutionLimit, seconds_allowed
from tests.unit.deployments.execution.instance_bench import Bench, FakeBackend
from tests.waiting import until


class Hanging(FakeBackend):
    """Executes until `end`; `interruptible` says whether an execution can be ended."""

    def __init__(self, interruptible: bool) -> None:
        super().__init__(self._hang)
        self.end = threading.Event()
        self.interruptible = interruptible

    def _hang(self, requests: Sequence[Request]) -> None:
        assert self.end.wait(30)

    def interrupt(self, instance: Instance) -> bool:
        if self.interruptible:
            self.end.set()
        return self.interruptible


class Limited:
    """An instance that executes, under a limit of 5 s of a clock that stands."""

    def __init__(self, interruptible: bool) -> None:
        self.backend = Hanging(interruptible)
        self.bench = Bench(self.backend, decoupled=False)
        self.now = 0
        self.limit = ExecutionLimit("m", 5.0, self.backend, lambda: [self.bench.thread], lambda: self.now)
        self.bench.thread.start()
        self.bench.thread.wait_loaded()

    async def begin(self) -> None:
        batch = self.bench.batch("a", "b")
        self.bench.thread.execute(batch)
        await until(lambda: batch.start_ns)
        self.now = batch.start_ns

    def after(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)
        self.limit.look()

    async def stop(self) -> None:
        self.backend.end.set()
        await asyncio.to_thread(self.bench.thread.stop, 5)


@pytest.fixture
async def limited(request: pytest.FixtureRequest) -> AsyncIterator[Limited]:
    made = Limited(request.param)
    yield made
    await made.stop()


TEXT = "model 'm': instance 'm_0_0' has executed for 5.1 s, more than the 5 s of max_execution_secs"


@pytest.mark.parametrize("limited", [True, False], indirect=True)
async def test_an_execution_within_its_limit_is_left_alone(limited: Limited) -> None:
    limited.after(100)  # nothing executes
    await limited.begin()
    limited.after(5)
    assert not limited.limit.stuck and not limited.bench.responses


@pytest.mark.parametrize("limited", [True, False], indirect=True)
async def test_an_execution_beyond_its_limit_fails_its_requests(limited: Limited) -> None:
    await limited.begin()
    limited.after(5.1)
    await until(lambda: len(limited.bench.responses) == 2)
    failures = [response.failure for (response,) in limited.bench.responses.values()]
    assert {(f.code, f.message) for f in failures if f} == {(ErrorCode.UNAVAILABLE, TEXT)}
    assert limited.limit.stuck == ("" if limited.backend.interruptible else TEXT)


@pytest.mark.parametrize("limited", [True], indirect=True)
async def test_an_interrupted_instance_goes_on(limited: Limited) -> None:
    await limited.begin()
    limited.after(5.1)
    await until(lambda: limited.bench.finished)
    limited.after(100)
    batch = await limited.bench.execute("c")
    assert batch.end_ns
    assert len(limited.bench.responses["a"]) == 1


@pytest.mark.parametrize("limited", [False], indirect=True)
async def test_a_stuck_replica_is_reported_once(limited: Limited) -> None:
    await limited.begin()
    limited.now += int(6e9)
    limited.limit._seconds = 0.01
    reported: list[bool] = []
    await asyncio.wait_for(limited.limit.watch(lambda: reported.append(True)), 60)
    assert reported == [True]


async def test_a_limited_instance_never_executes_on_the_loop() -> None:
    backend = FakeBackend(lambda requests: None)
    backend.eligible = True
    for has_time_limit in (True, False):
        bench = Bench(backend, decoupled=False)
        bench.thread.has_time_limit = has_time_limit
        bench.thread.start()
        bench.thread.wait_loaded()
        assert (bench.thread._loop_executor is None) == has_time_limit
        await asyncio.to_thread(bench.thread.stop, 5)


def model(value: str = "") -> mc.ModelConfig:
    config = mc.ModelConfig(name="m")
    if value:
        config.parameters["max_execution_secs"].string_value = value
    return config


def test_the_limit_is_the_models_or_the_servers() -> None:
    assert seconds_allowed(model(), 0.0) == 0
    assert seconds_allowed(model(), 7.0) == 7
    assert seconds_allowed(model("2.5"), 7.0) == 2.5
    assert seconds_allowed(model("0"), 7.0) == 0


@pytest.mark.parametrize("value", ["x", "-1", "nan", "inf"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(value: str) -> None:
    with pytest.raises(InferError, match=f"'max_execution_secs' of model 'm' must be a number .* '{value}'"):
        seconds_allowed(model(value), 0.0)
