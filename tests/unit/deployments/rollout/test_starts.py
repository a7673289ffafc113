"""Rollouts started while something else happens to the model: done, or refused with the reason."""

import asyncio
from typing import Any

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.rollout.history import RejectedVersion
from app.core.rollout.status import RolloutState
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.rollout.rollout_bench import (
    ABORTED,
    DONE,
    FAILED,
    POLICY,
    STEP,
    RolloutBench,
    act,
    ready,
    refusal,
    split,
    state,
    status,
)
from tests.waiting import until


def barred(made: RepositoryManager) -> tuple[RejectedVersion, ...]:
    record = made.lifecycle.rollouts.record("m")
    assert record is not None
    return record.barred


async def behind(made: RepositoryManager, action: str = "start") -> "asyncio.Task[Any]":
    """Start a rollout while an operation on the model runs; return when it is under way or waits."""
    before = made.lifecycle.locks.users("m")
    task = asyncio.create_task(act(made, action))
    await until(lambda: task.done() or made.lifecycle.locks.users("m") > before)
    return task


async def reloading(rollouts: RolloutBench, made: RepositoryManager) -> "asyncio.Task[None]":
    """Reload the model, until its gate opens."""
    rollouts.bench.serve.gates["m"] = asyncio.Event()
    count = len(rollouts.bench.serve.deployed)
    task = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: len(rollouts.bench.serve.deployed) > count)
    return task


async def test_behind_a_load_that_began_before_the_version_was_there(rollouts: RolloutBench) -> None:
    directory = rollouts.bench.add("m")
    made = await rollouts.manager(load_model=["m"])
    (directory / "1" / "weights").write_bytes(b"other")
    loading = await reloading(rollouts, made)
    rollouts.bench.add("m", versions=(2,))
    start = await behind(made)
    rollouts.bench.serve.gates["m"].set()
    await loading
    assert (await start).state is STEP and ready(made) == [1, 2]
    assert made.table.resolve("m").version == 1 and not barred(made)


@pytest.mark.parametrize("policy", [None, POLICY])
async def test_a_version_that_appears_before_a_rollout_is_done_waits_for_its_start(
    rollouts: RolloutBench, policy: str | None
) -> None:
    made = await rollouts.serving(policy)
    await act(made, "start", spec={"steps": [], "keep_stable_seconds": 60})
    rollouts.bench.add("m", versions=(3,))
    assert state(await rollouts.after(made, 61)) == (DONE, 100)
    assert ready(made) == [2] and split(made) is None
    assert (await act(made, "start")).state is STEP
    assert made.table.resolve("m").version == 2 and ready(made) == [2, 3]


async def test_the_load_that_ends_a_rollout_lets_the_next_one_go_on(rollouts: RolloutBench) -> None:
    """The start may be ahead of it, where many models wait for a load."""
    made = await rollouts.serving(policy=None)
    driver = made._rollouts
    for version in (2, 3):
        rollouts.bench.add("m", versions=(version,))
        assert (await act(made, "start", spec={"steps": [50], "keep_stable_seconds": 60})).state is STEP
        if version == 2:
            await act(made, "promote")
            await rollouts.after(made, 61)
    await driver._models.load_quietly("m", begin=driver._as_it_is)
    rolled = await status(made)
    assert (rolled.stable, rolled.candidate, rolled.state) == (2, 3, STEP) and ready(made) == [2, 3]


async def test_behind_a_load_that_serves_the_version_at_once(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    loading = await reloading(rollouts, made)
    start = await behind(made)
    rollouts.bench.serve.gates["m"].set()
    await loading
    with pytest.raises(InferError, match=r"nothing to roll out: .* mean version 2, and the newest") as caught:
        await start
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert ready(made) == [2] and split(made) is None


async def test_behind_an_unload(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    rollouts.bench.serve.may_delete.clear()
    unloading = asyncio.create_task(made.unload("m"))
    await until(lambda: made.lifecycle.busy("m"))
    start = await behind(made)
    rollouts.bench.serve.may_delete.set()
    await unloading
    with pytest.raises(InferError, match="no version of model 'm' is loaded"):
        await start
    assert ready(made) == [] and rollouts.bench.serve.deployed == ["m:1"]


async def test_before_an_unload(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    async with made.lifecycle.locks.acquire("m"):
        start = await behind(made)
        unloading = asyncio.create_task(made.unload("m"))
        await until(lambda: made.lifecycle.locks.users("m") == 3)
    await asyncio.gather(start, unloading)
    assert ready(made) == [] and state(await status(made)) == (ABORTED, 0)
    assert not barred(made)


async def test_behind_another_start(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    rollouts.bench.serve.gates["m"] = asyncio.Event()
    first = await behind(made)
    await until(lambda: rollouts.bench.serve.deployed[-1] == "m:2")
    second = await behind(made)
    rollouts.bench.serve.gates["m"].set()
    assert (await first).state is STEP
    with pytest.raises(InferError, match="version 1 to 2 is on already"):
        await second
    assert ready(made) == [1, 2] and rollouts.bench.serve.deployed == ["m:1", "m:2"]


async def test_while_the_end_of_another_one_retires_the_stable_version(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await act(made, "promote")
    async with made.lifecycle.locks.acquire("m"):
        rollouts.now += 301
        made._rollouts.tick()
        await until(lambda: made.lifecycle.locks.users("m") == 2)
        assert (await status(made)).state is DONE
        rollouts.bench.add("m", versions=(3,))
        start = await behind(made)
    rolled = await start
    await until(lambda: not made._rollouts._busy)
    assert (rolled.stable, rolled.candidate, rolled.state) == (2, 3, STEP) and not barred(made)
    assert ready(made) == [2, 3]


async def test_a_load_settles_only_what_it_has_planned(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(POLICY)
    gate = rollouts.bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: rollouts.bench.serve.deployed[-1] == "m:2")
    held = made.lifecycle.rollouts
    rollout = held.loading("m", (1, 2))
    assert rollout and held.loading("m", (1,)) == ""
    for other in ("", "another"):
        assert await held.settle("m", other, {2: "no such layer"}, ()) is None
    assert (await status(made)).state is RolloutState.LOADING
    await held.settle("m", rollout, {1: "no such layer"}, ())
    failed = await status(made)
    assert state(failed) == (FAILED, 0) and failed.reason == "no such layer"
    assert not barred(made), "the candidate is not to blame"
    gate.set()
    await loading


async def test_of_an_unknown_model(rollouts: RolloutBench) -> None:
    made = await rollouts.manager()
    with pytest.raises(InferError, match="model 'm' is not in a model repository, so") as caught:
        await act(made, "start")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_of_a_model_that_cannot_be_read(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    (rollouts.bench.repository / "m" / "config.pbtxt").write_text("no such field: 1")
    with pytest.raises(InferError, match="failed to poll from model repository: ") as caught:
        await act(made, "start")
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert ready(made) == [1]


async def test_what_is_refused_is_no_failed_load(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    assert "has no version 9" in await refusal(made, "start", candidate=9)
    assert made.table.load_failures == {}
