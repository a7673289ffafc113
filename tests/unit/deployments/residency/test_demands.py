"""Loads on demand: one for all that ask, and a pause after a failure that grows."""

import asyncio

import pytest

from app.core.errors import ErrorCode, InferError, unavailable
from deployments.residency import demands
from deployments.residency.demands import Demands
from tests.waiting import let_run


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.loads: list[str] = []
        self.failure: Exception | None = None
        self.go = asyncio.Event()
        self.demands = Demands(self.load, lambda: self.now)

    async def load(self, name: str) -> None:
        self.loads.append(name)
        await self.go.wait()
        if self.failure is not None:
            raise self.failure

    async def refused(self, name: str = "m") -> InferError:
        with pytest.raises(InferError) as caught:
            await self.demands.bring(name)
        return caught.value


async def test_all_that_ask_wait_for_one_load() -> None:
    bench = Bench()
    asked = [asyncio.create_task(bench.demands.bring("m")) for _ in range(5)]
    await let_run()
    asked[0].cancel()
    bench.go.set()
    await asyncio.gather(*asked[1:])
    assert (bench.loads, bench.demands.started) == (["m"], 1)
    await bench.demands.bring("m")
    assert bench.loads == ["m", "m"]


async def test_a_failed_load_answers_all_and_is_not_tried_again_at_once() -> None:
    bench = Bench()
    bench.failure = unavailable("failed to load 'm'")
    asked = [asyncio.create_task(bench.demands.bring("m")) for _ in range(3)]
    await let_run()
    bench.go.set()
    errors = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(error) for error in errors] == ["failed to load 'm'"] * 3
    pauses = []
    for _ in range(9):
        early = await bench.refused()
        assert str(early) == "failed to load 'm'"
        pauses.append(early.retry_after_s)
        loads = len(bench.loads)
        bench.now += early.retry_after_s - 0.01
        await bench.refused()
        assert len(bench.loads) == loads, "tried too early"
        bench.now += 0.02
        await bench.refused()
        assert len(bench.loads) == loads + 1
    assert [round(pause) for pause in pauses] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert bench.demands.failed == 10


async def test_new_files_and_a_success_end_the_pause() -> None:
    bench = Bench()
    bench.go.set()
    bench.failure = RuntimeError("broken")
    assert (await bench.refused()).code is ErrorCode.INTERNAL
    bench.demands.forget("m")
    bench.failure = None
    await bench.demands.bring("m")
    bench.failure = unavailable("again")
    assert (await bench.refused()).retry_after_s == 1.0


async def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demands, "MAX_DEMANDS", 1)
    bench = Bench()
    first = asyncio.create_task(bench.demands.bring("a"))
    await let_run()
    assert "too many models are being loaded" in str(await bench.refused("b"))
    bench.go.set()
    await first
