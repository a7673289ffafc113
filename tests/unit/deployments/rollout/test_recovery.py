"""A repository manager that is killed in the middle of a rollout, and the one after it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.core.rollout.outcomes import VersionOutcomes
from app.core.rollout.status import RolloutState, RolloutStatus
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.rollout.rollout_bench import (
    POLICY,
    RolloutBench,
    act,
    split,
    state,
    status,
)
from tests.waiting import until

Reach = Callable[[RolloutBench], Awaitable[RepositoryManager]]


async def kill(rollouts: RolloutBench, made: RepositoryManager) -> None:
    """End a manager at once; Serve and the store stay as they are."""
    tasks = [task for task in made._background if not task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def successor(rollouts: RolloutBench, made: RepositoryManager) -> RepositoryManager:
    await kill(rollouts, made)
    return await rollouts.manager(load_model=["m"])


async def loading(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.serving()
    gate = rollouts.bench.serve.gates["m"] = asyncio.Event()
    task = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: rollouts.bench.serve.deployed[-1] == "m:2")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    gate.set()
    return made


async def shadow(rollouts: RolloutBench) -> RepositoryManager:
    return await rollouts.stepping(POLICY + "mirror: 20\n")


async def first_step(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.stepping()
    rollouts.now += 10
    await rollouts.report(made, VersionOutcomes(ok=7))
    await made.lifecycle.rollouts.save("m")
    return made


async def second_step(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.stepping()
    await rollouts.after(made, 61, ok=100)
    return made


async def paused(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.stepping()
    await act(made, "pause")
    return made


async def no_room(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.serving()
    rollouts.bench.serve.failures["m:2"] = "Internal: out of memory"
    await asyncio.gather(made.load(LoadRequest("m")), return_exceptions=True)
    return made


async def promoted(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.stepping()
    await act(made, "promote")
    return made


async def rolling_back(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.stepping()
    await act(made, "abort")
    return made


async def failed(rollouts: RolloutBench) -> RepositoryManager:
    made = await rollouts.serving()
    rollouts.bench.serve.failures["m:2"] = "Internal: no such layer"
    await asyncio.gather(made.load(LoadRequest("m")), return_exceptions=True)
    rollouts.bench.serve.failures.clear()
    return made


async def aborted(rollouts: RolloutBench) -> RepositoryManager:
    made = await rolling_back(rollouts)
    await rollouts.after(made)
    return made


KILLED: list[tuple[Reach, tuple[RolloutState, float], list[int]]] = [
    (loading, (RolloutState.STEP, 10), [1, 2]),
    (shadow, (RolloutState.SHADOW, 0), [1, 2]),
    (first_step, (RolloutState.STEP, 10), [1, 2]),
    (second_step, (RolloutState.STEP, 50), [1, 2]),
    (paused, (RolloutState.PAUSED, 10), [1, 2]),
    (no_room, (RolloutState.PAUSED, 0), [1]),
    (promoted, (RolloutState.PROMOTED, 100), [1, 2]),
    (rolling_back, (RolloutState.ABORTED, 0), [1]),
    (failed, (RolloutState.FAILED, 0), [1]),
    (aborted, (RolloutState.ABORTED, 0), [1]),
]


@pytest.mark.parametrize(
    ("reach", "expected", "serving"), KILLED, ids=[reach.__name__ for reach, *_ in KILLED]
)
async def test_a_killed_manager_is_followed_by_one_that_goes_on(
    rollouts: RolloutBench,
    reach: Reach,
    expected: tuple[RolloutState, float],
    serving: list[int],
) -> None:
    made = await reach(rollouts)
    before: RolloutStatus = await status(made)
    after = await successor(rollouts, made)
    found = await rollouts.after(after)
    assert state(found) == expected and after.table.ready_versions("m") == serving
    assert after.table.resolve("m").version == 1
    assert (found.rollout, found.stable, found.candidate) == (before.rollout, 1, 2)
    assert found.history[: len(before.history)] == before.history
    assert found.total.candidate.ok == before.total.candidate.ok
    if found.state is before.state:
        assert found.outcomes == before.outcomes and split(after) == split(made)


async def test_a_killed_manager_does_not_leave_a_retired_version_behind(rollouts: RolloutBench) -> None:
    made = await promoted(rollouts)
    rollouts.bench.serve.may_delete.clear()
    await rollouts.after(made, 301)
    await kill(rollouts, made)
    after = await rollouts.manager()
    rollouts.bench.serve.may_delete.set()
    assert (await status(after)).state is RolloutState.DONE
    await until(lambda: after.table.ready_versions("m") == [2])


async def lose(rollouts: RolloutBench, *applications: str) -> None:
    for application in applications:
        del rollouts.bench.serve.running[application]


async def test_a_candidate_that_is_gone_is_rolled_back(rollouts: RolloutBench) -> None:
    made = await first_step(rollouts)
    await kill(rollouts, made)
    await lose(rollouts, "m:2")
    after = await rollouts.manager()
    ended = await rollouts.after(after)
    assert state(ended) == (RolloutState.FAILED, 0)
    assert ended.reason == "version 2 was gone after a restart"
    assert after.table.ready_versions("m") == [1]


async def test_without_the_stable_version_the_rollout_pauses(rollouts: RolloutBench) -> None:
    made = await first_step(rollouts)
    await kill(rollouts, made)
    await lose(rollouts, "m:1")
    after = await rollouts.manager()
    ended = await status(after)
    assert state(ended) == (RolloutState.PAUSED, 10) and ended.reason == "stable version 1 is gone"
    assert after.table.resolve("m").version == 2


async def test_a_cluster_that_starts_anew_loads_both_and_goes_on(rollouts: RolloutBench) -> None:
    made = await second_step(rollouts)
    await kill(rollouts, made)
    await lose(rollouts, "m:1", "m:2")
    after = await rollouts.manager(load_model=["m"])
    assert state(await status(after)) == (RolloutState.STEP, 50)
    assert after.table.ready_versions("m") == [1, 2] and after.table.resolve("m").version == 1


async def test_a_cluster_that_starts_anew_with_a_newer_version_rolls_that_out(rollouts: RolloutBench) -> None:
    made = await second_step(rollouts)
    await kill(rollouts, made)
    await lose(rollouts, "m:1", "m:2")
    rollouts.bench.add("m", versions=(3,))
    after = await rollouts.manager(load_model=["m"])
    found = await status(after)
    assert state(found) == (RolloutState.STEP, 10) and (found.stable, found.candidate) == (1, 3)
    assert after.table.ready_versions("m") == [1, 3]


async def forgetful(rollouts: RolloutBench, made: RepositoryManager) -> RepositoryManager:
    """Return the successor of a manager whose store has lost everything; an ingress has the last table."""
    serve = rollouts.bench.serve
    serve.splits = made.table.splits
    serve.store.values.clear()
    return await successor(rollouts, made)


LOST = "the cluster's store has lost this rollout: the weight is that of an ingress, counters begin anew"


@pytest.mark.parametrize(
    ("reach", "percent"), [(shadow, 0), (first_step, 10), (second_step, 50), (paused, 10), (promoted, 100)]
)
async def test_a_rollout_that_the_store_has_lost_is_paused_as_the_ingresses_route(
    rollouts: RolloutBench, reach: Reach, percent: float
) -> None:
    made = await reach(rollouts)
    before, routed = await status(made), split(made)
    again = await forgetful(rollouts, made)
    after = await status(again)
    assert state(after) == (RolloutState.PAUSED, percent) and after.reason == LOST
    assert (after.rollout, after.step, after.stable, after.candidate) == (before.rollout, before.step, 1, 2)
    assert after.spec == before.spec
    found = split(again)
    assert found is not None and routed is not None
    kept = ("rollout", "step", "weight", "salt", "sticky", "match", "mirror", "stable", "candidate")
    assert [getattr(found, name) for name in kept] == [getattr(routed, name) for name in kept]
    await again.load(LoadRequest("m"))
    assert again.table.ready_versions("m") == [1, 2] and rollouts.bench.serve.deployed == ["m:1", "m:2"]


async def test_a_lost_rollout_whose_candidate_was_loading_loads_it_when_a_person_says_so(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.serving(POLICY + "mirror: 20\n")
    gate = rollouts.bench.serve.gates["m"] = asyncio.Event()
    task = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: made.table.splits != ())
    again = await forgetful(rollouts, made)
    gate.set()
    await asyncio.gather(task, return_exceptions=True)
    lost = await status(again)
    assert state(lost) == (RolloutState.PAUSED, 0) and lost.reason == LOST and lost.spec.mirror == 20
    await act(again, "resume")
    assert state(await rollouts.after(again)) == (RolloutState.SHADOW, 0)
    assert again.table.ready_versions("m") == [1, 2]


async def test_a_lost_rollout_goes_on_when_a_person_says_so(rollouts: RolloutBench) -> None:
    made = await forgetful(rollouts, await second_step(rollouts))
    assert state(await act(made, "resume")) == (RolloutState.STEP, 50)
    assert state(await rollouts.after(made, 61, ok=100)) == (RolloutState.PROMOTED, 100)


async def test_a_lost_rollout_whose_candidate_is_bad_is_rolled_back(rollouts: RolloutBench) -> None:
    made = await forgetful(rollouts, await second_step(rollouts))
    rollouts.alarms = ("too many errors",)
    assert state(await rollouts.after(made)) == (RolloutState.ROLLING_BACK, 0)


async def test_a_lost_rollout_that_was_being_rolled_back_is(rollouts: RolloutBench) -> None:
    made = await forgetful(rollouts, await rolling_back(rollouts))
    await rollouts.after(made)
    assert state(await status(made)) == (RolloutState.FAILED, 0)
    await until(lambda: made.table.ready_versions("m") == [1])


async def test_a_stored_rollout_is_not_that_of_an_ingress_that_is_behind(rollouts: RolloutBench) -> None:
    made = await first_step(rollouts)
    behind = made.table.splits
    await rollouts.after(made, 61, ok=100)
    rollouts.bench.serve.splits = behind
    again = await successor(rollouts, made)
    assert state(await status(again)) == (RolloutState.STEP, 50)
