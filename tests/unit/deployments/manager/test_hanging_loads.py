"""Loads that never return: they can be unloaded, and keep nobody from loading."""

import asyncio
from pathlib import Path

import pytest

from app.routing.manager_client import LoadRequest
from deployments.manager import polling, requests
from deployments.manager.loading.model_locks import ModelLocks
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.manager.manager_bench import Bench, load, states
from tests.unit.ensembles import ensemble, model, step
from tests.waiting import let_run, until


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "ABANDON_S", 0.01)
    monkeypatch.setattr(requests, "LONG_LOAD_S", 0.01)


async def hanging(bench: Bench, made: RepositoryManager, name: str) -> "asyncio.Task[str]":
    """Begin to load a model whose load never returns; the text of the failure."""
    bench.serve.gates[name] = asyncio.Event()
    bench.add(name)

    async def failure() -> str:
        with pytest.raises(Exception) as caught:
            await made.load(LoadRequest(name))
        return str(caught.value)

    task = asyncio.create_task(failure())
    await until(lambda: bench.serve.loading)
    return task


async def test_a_load_that_never_returns_is_unloaded_at_once(bench: Bench) -> None:
    made = await bench.start_explicit(model_load_retry_count=2)
    loading = await hanging(bench, made, "m")
    await asyncio.wait_for(made.unload("m"), 60)
    text = "version 1 is at UNAVAILABLE state: Unavailable: unloaded while it was loading"
    assert text in await loading
    await until(lambda: bench.serve.killed == ["m:1"])
    assert bench.serve.deployed == ["m:1"]
    assert await states(made) == [("m", "1", "UNAVAILABLE")]
    del bench.serve.gates["m"]
    await load(made, "m")
    assert await states(made) == [("m", "1", "READY")]


async def test_an_unload_waits_for_a_load_in_progress_and_both_succeed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "LONG_LOAD_S", 30.0)
    made = await bench.start_explicit()
    gate = bench.serve.gates["m"] = asyncio.Event()
    bench.add("m")
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.loading)
    unloading = asyncio.create_task(made.unload("m"))
    await asyncio.sleep(0.05)
    assert not unloading.done() and not loading.done()
    gate.set()
    await asyncio.gather(loading, unloading)
    assert bench.serve.killed == []
    assert await states(made) == [("m", "1", "UNAVAILABLE")]


async def test_a_load_that_begins_during_an_unload_is_not_given_up(bench: Bench) -> None:
    """The unload goes on after it has released the model: it waits for a model of the ensemble."""
    made = await bench.start_explicit()
    bench.add("m", model())
    bench.add("e", ensemble(step({"x": "IN"}, {"y": "OUT"}, "m")))
    await load(made, "e")
    bench.serve.may_delete.clear()
    unloading = asyncio.create_task(made.unload("e", True))
    await until(lambda: "m:1" in bench.serve.deleted)
    bench.serve.gates["e"] = asyncio.Event()
    bench.add("e", model())
    loading = asyncio.create_task(load(made, "e"))
    await until(lambda: bench.serve.loading)
    await asyncio.sleep(0.05)  # the unload gives up every 0.01 s what it waits for
    assert not unloading.done() and not loading.done()
    bench.serve.gates["e"].set()
    await loading
    bench.serve.may_delete.set()
    await unloading
    assert ("e", "1", "READY") in await states(made)


async def test_a_model_that_unloads_itself_while_it_loads_is_not_killed(bench: Bench) -> None:
    made = await bench.start_explicit()
    bench.serve.gates["m"] = asyncio.Event()
    bench.add("m")
    loading = asyncio.create_task(load(made, "m"))
    await until(lambda: bench.serve.loading)
    with pytest.raises(Exception, match="circular load of models"):
        await asyncio.wait_for(made.unload("m", False, "m"), 60)
    bench.serve.gates["m"].set()
    await loading
    assert bench.serve.killed == []


async def test_loads_that_wait_behind_it_are_given_up_too(bench: Bench) -> None:
    made = await bench.start_explicit()
    loading = [await hanging(bench, made, "m"), await hanging(bench, made, "m")]
    await until(lambda: made.lifecycle.locks.users("m") == 2)
    await asyncio.wait_for(made.unload("m"), 60)
    assert all("unloaded while it was loading" in text for text in await asyncio.gather(*loading))


async def test_an_unload_in_poll_mode_ends_a_load_that_never_returns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "LONG_LOAD_S", 0.01)
    ticks = asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        await ticks.acquire()

    monkeypatch.setattr(polling, "poll_pause", pause)
    await bench.start(model_control_mode="poll")
    bench.serve.gates["m"] = asyncio.Event()
    directory = bench.add("m")
    for _ in range(2):
        ticks.release()
    await until(lambda: bench.serve.loading)
    bench.add("n")
    for _ in range(2):
        ticks.release()
    await until(lambda: "n:1" in bench.serve.running)
    remove(directory)
    for _ in range(2):
        ticks.release()
    await until(lambda: bench.serve.killed == ["m:1"])


def remove(directory: Path) -> None:
    for path in sorted(directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    directory.rmdir()


async def test_a_long_load_frees_its_slot() -> None:
    locks = ModelLocks(1, long_load_s=0.01)
    order: list[str] = []

    async def hold(name: str, until_set: asyncio.Event) -> None:
        async with locks.load_slot(name):
            order.append(name)
            await until_set.wait()

    never, now = asyncio.Event(), asyncio.Event()
    now.set()
    first = asyncio.create_task(hold("first", never))
    await let_run(1)
    await asyncio.gather(*(hold(name, now) for name in ("second", "third")))
    assert order == ["first", "second", "third"]
    never.set()
    await first
    async with locks.load_slot("fourth"):
        assert locks._used_slots() == 1
