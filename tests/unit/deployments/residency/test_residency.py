"""Room in memory: who is evicted for whom, by what is measured and reported, under a fake clock."""

import asyncio
from typing import Any

import pytest

from app.core.errors import InferError
from app.core.residency import ReplicaUse
from deployments.residency import residency
from deployments.residency.residency import Kept, Residency
from deployments.spec import ModelSpec
from tests.waiting import let_run, until

MIB = 1 << 20


def spec(name: str) -> ModelSpec:
    return ModelSpec(name, 1, "", b"", f"{name}:1", "", b"")


class Bench:
    """A budget for a few models of 100 MiB."""

    def __init__(self, budget: int = 250 * MIB) -> None:
        self.now = 1000.0
        self.served: dict[str, ModelSpec] = {}
        self.kept = Kept()
        self.evicted: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.residency = Residency(
            budget, lambda: self.served, lambda: self.kept, self.evict, lambda: self.now
        )

    async def evict(self, name: str) -> None:
        self.evicted.append(name)
        del self.served[f"{name}:1"]
        await self.may_end.wait()

    async def load(self, name: str, file_bytes: int = 0) -> None:
        async with self.residency.room(name, 1, file_bytes):
            self.served[f"{name}:1"] = spec(name)

    def use(self, name: str, nbytes: int = 100 * MIB, idle_s: float = 50.0, **more: Any) -> None:
        self.residency.report([(f"{name}:1", ReplicaUse(f"replica of {name}", nbytes, idle_s, **more))])

    async def filled(self) -> None:
        """Have `old` and `new` in memory, which leave room for nothing else."""
        await self.load("old")
        await self.load("new")
        self.now += 100
        self.use("old", idle_s=60)
        self.use("new", idle_s=50)

    @property
    def nbytes(self) -> int:
        return self.residency.summary(0, 0, 0).nbytes


async def test_a_version_counts_between_its_load_and_its_service() -> None:
    bench = Bench()
    await bench.filled()
    async with bench.residency.room("next", 1, 0):
        assert bench.evicted == ["old"]
    counted = bench.nbytes
    assert counted > 150 * MIB, "it is not served yet, and has its memory"
    bench.served["next:1"] = spec("next")
    assert bench.nbytes == counted
    del bench.served["next:1"]
    bench.now += residency.SETTLE_S
    assert bench.nbytes == 100 * MIB, "a load that failed has none"


async def test_the_least_recently_used_makes_room_and_has_ended_before_the_load() -> None:
    bench = Bench()
    await bench.filled()
    bench.may_end.clear()
    loading = asyncio.create_task(bench.load("next"))
    await until(lambda: bench.evicted == ["old"])
    assert "next:1" not in bench.served
    assert bench.nbytes <= 250 * MIB
    bench.may_end.set()
    await loading
    assert sorted(bench.served) == ["new:1", "next:1"]
    summary = bench.residency.summary(7, 3, 1)
    assert (summary.evicted, summary.evicted_age_s, summary.models) == (1, 60.0, 2)
    assert (summary.registered, summary.demanded, summary.failed) == (7, 3, 1)


async def test_loads_at_the_same_time_evict_different_models() -> None:
    bench = Bench()
    await bench.filled()
    bench.may_end.clear()
    loads = [asyncio.create_task(bench.load(name)) for name in ("a", "b")]
    await until(lambda: sorted(bench.evicted) == ["new", "old"])
    bench.may_end.set()
    await asyncio.gather(*loads)
    assert sorted(bench.served) == ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"idle_s": 0.0}, "is in use"),
        ({"sequences": 1}, "has sequences"),
        ({"kept": "is pinned"}, "is pinned"),
    ],
)
async def test_what_is_kept_is_not_evicted(change: dict[str, Any], why: str) -> None:
    bench = Bench()
    await bench.filled()
    if reason := change.pop("kept", ""):
        bench.kept = Kept({"old": reason})
    bench.use("old", **{"idle_s": 60.0, **change})
    await bench.load("next")
    assert bench.evicted == ["new"]
    (old,) = [model for model in bench.residency._residents() if model.name == "old"]
    assert old.kept == why


async def test_a_load_waits_until_a_model_is_idle() -> None:
    bench = Bench()
    await bench.filled()
    for name in ("old", "new"):
        bench.use(name, idle_s=0.0)
    loading = asyncio.create_task(bench.load("next"))
    await let_run()
    assert bench.evicted == []
    bench.use("new", idle_s=1.0)
    await loading
    assert bench.evicted == ["new"]


async def test_a_load_does_not_wait_for_ever() -> None:
    bench = Bench()
    await bench.filled()
    for name in ("old", "new"):
        bench.use(name, idle_s=0.0)
    loading = asyncio.create_task(bench.load("next"))
    await let_run()
    bench.now += residency.PATIENCE_S
    for name in ("old", "new"):
        bench.use(name, idle_s=0.0)
    with pytest.raises(InferError, match=r"no room in memory for model 'next'.*each is in use"):
        await loading
    assert bench.nbytes == 200 * MIB


async def test_a_model_that_was_just_loaded_is_left_to_those_that_waited_for_it() -> None:
    bench = Bench()
    await bench.filled()
    bench.now += 1000
    bench.use("old", idle_s=500)
    bench.use("new", idle_s=400)
    await bench.load("a")
    loading = asyncio.create_task(bench.load("b"))
    await loading
    assert bench.evicted == ["old", "new"]
    third = asyncio.create_task(bench.load("c"))
    await let_run()
    assert sorted(bench.served) == ["a:1", "b:1"], "neither has answered anybody yet"
    bench.now += residency.SETTLE_S
    bench.use("a", idle_s=1.0)
    await third
    assert bench.evicted == ["old", "new", "b"], "as a was used since"


async def test_the_size_of_a_load_is_guessed_by_its_files_until_it_was_measured() -> None:
    bench = Bench(budget=1000 * MIB)
    await bench.filled()
    assert bench.residency._estimate(("unknown", 1), 200 * MIB) == (300 + 100) * MIB
    assert bench.residency._estimate(("new", 1), 200 * MIB) == 100 * MIB
    with pytest.raises(InferError, match="more than --model-memory-bytes"):
        await bench.load("huge", 800 * MIB)


async def test_a_model_that_grows_costs_the_oldest_its_place() -> None:
    bench = Bench()
    await bench.filled()
    bench.use("new", nbytes=200 * MIB, idle_s=0.0)
    await until(lambda: bench.evicted == ["old"])


async def test_a_failed_load_and_a_cancelled_one_give_their_room_back() -> None:
    bench = Bench()
    await bench.filled()
    before = bench.nbytes
    with pytest.raises(RuntimeError):
        async with bench.residency.room("old", 1, 0):
            raise RuntimeError
    assert (bench.evicted, bench.nbytes) == (["new"], before - 100 * MIB)
    bench.may_end.clear()
    waiting = asyncio.create_task(bench.load("c", 100 * MIB))
    await let_run()
    waiting.cancel()
    bench.may_end.set()
    await let_run()
    assert bench.residency._loading == {}


async def test_without_a_budget_nothing_is_asked() -> None:
    bench = Bench(budget=0)
    for name in "abcdef":
        await bench.load(name, 1000 * MIB)
    assert bench.evicted == []


async def test_a_report_that_is_old_does_not_keep_a_model() -> None:
    bench = Bench()
    await bench.filled()
    bench.use("old", idle_s=0.0)
    bench.now += residency._STALE_S
    bench.residency.report([])
    bench.use("new", idle_s=100.0)
    await bench.load("next")
    assert len(bench.evicted) == 1
