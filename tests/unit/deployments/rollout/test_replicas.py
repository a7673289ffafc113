"""The replicas of a candidate, which it has before it gets the requests that need them."""

import asyncio

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.rollout.status import RolloutState
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from deployments.rollout import driver
from tests.unit.deployments.model_directories import CONFIG
from tests.unit.deployments.rollout.rollout_bench import (
    PAUSED,
    POLICY,
    PROMOTED,
    STEP,
    RolloutBench,
    act,
    split,
    state,
    status,
)
from tests.waiting import until

FOUR = CONFIG + '\nparameters { key: "ray_replicas" value { string_value: "4" } }'


async def stepping(rollouts: RolloutBench, policy: str = POLICY) -> RepositoryManager:
    """Start a manager whose model of four replicas is in the first step, of 10 %."""
    made = await rollouts.serving(policy, FOUR)
    await made.load(LoadRequest("m"))
    return made


def run_all(rollouts: RolloutBench) -> None:
    """Have all replicas run that were asked for."""
    replicas = rollouts.bench.serve.replicas
    replicas["m:2"] = replicas["m:2"]._replace(running=replicas["m:2"].target)


async def test_a_candidate_starts_with_the_replicas_of_its_first_step(rollouts: RolloutBench) -> None:
    await stepping(rollouts)
    assert rollouts.bench.serve.replicas == {"m:1": (4, 4), "m:2": (1, 1)}


async def test_its_replicas_run_before_it_gets_more_requests(rollouts: RolloutBench) -> None:
    made = await stepping(rollouts)
    waiting = await rollouts.after(made, 61, ok=100)
    found = split(made)
    assert state(waiting) == (STEP, 10) and found is not None and found.weight == 100_000
    assert waiting.verdict.waiting == "1 of 2 replicas of the candidate run"
    assert rollouts.bench.serve.replicas["m:2"] == (2, 1)
    run_all(rollouts)
    assert state(await rollouts.after(made)) == (STEP, 50)
    assert state(await rollouts.after(made, 61, ok=100)) == (STEP, 50)
    run_all(rollouts)
    assert state(await rollouts.after(made)) == (PROMOTED, 100)
    assert rollouts.bench.serve.replicas["m:2"] == (4, 4)


async def test_an_alarm_does_not_wait_for_replicas(rollouts: RolloutBench) -> None:
    made = await stepping(rollouts)
    assert state(await rollouts.after(made, 61, ok=100)) == (STEP, 10)
    rollouts.alarms = ("too many errors",)
    assert state(await rollouts.after(made)) == (RolloutState.ROLLING_BACK, 0)


async def test_a_rollout_whose_replicas_do_not_start_is_paused(rollouts: RolloutBench) -> None:
    made = await stepping(rollouts)
    assert state(await rollouts.after(made, 61, ok=100)) == (STEP, 10)
    ended = await rollouts.after(made, 3600)
    assert state(ended) == (PAUSED, 10)
    assert ended.reason == "no room: 1 of 2 replicas of the candidate run"


async def test_a_weight_that_a_person_sets_waits_for_replicas(
    rollouts: RolloutBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await stepping(rollouts)
    looks: list[float] = []

    async def pause(seconds: float) -> None:
        looks.append(seconds)
        assert state(await status(made)) == (STEP, 10)
        if len(looks) == 3:
            run_all(rollouts)

    monkeypatch.setattr(driver, "replicas_pause", pause)
    assert state(await act(made, "set", weight=75)) == (STEP, 75)
    assert looks == [1.0] * 3 and rollouts.bench.serve.replicas["m:2"] == (3, 3)
    assert state(await act(made, "set", weight=20)) == (STEP, 20)
    assert rollouts.bench.serve.replicas["m:2"] == (3, 3), "a rollout takes none away"


async def test_a_promotion_without_the_replicas_for_it_is_refused(
    rollouts: RolloutBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await stepping(rollouts)

    async def pause(seconds: float) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(driver, "replicas_pause", pause)
    with pytest.raises(InferError) as caught:
        await act(made, "promote")
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert caught.value.message == (
        "the rollout of model 'm' goes on as before: after 300 s 1 of 4 replicas of the candidate run"
    )
    assert state(await status(made)) == (STEP, 10)


async def test_a_candidate_promoted_while_it_loads_waits_for_its_replicas(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(config=FOUR)
    gate = rollouts.bench.serve.gates["m"] = asyncio.Event()
    load = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: rollouts.bench.serve.deployed[-1] == "m:2")
    await act(made, "promote")
    gate.set()
    await load
    waiting = await status(made)
    assert state(waiting) == (RolloutState.SHADOW, 0)
    assert waiting.reason == "loaded: 1 of 4 replicas of the candidate run"
    assert state(await rollouts.after(made)) == (RolloutState.SHADOW, 0)
    run_all(rollouts)
    assert state(await rollouts.after(made)) == (PROMOTED, 100)
