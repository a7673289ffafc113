"""Rollouts as people start and change them, over a fake of Serve."""

import asyncio
from typing import Any

import pytest

from app.core.errors import InferError
from app.core.rollout.status import RolloutState
from app.routing.manager_client import LoadRequest
from tests.unit.deployments.model_directories import CONFIG
from tests.unit.deployments.rollout.rollout_bench import (
    ABORTED,
    DONE,
    FAILED,
    PAUSED,
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
from tests.unit.ensembles import ensemble, model, step
from tests.waiting import until


@pytest.mark.parametrize("mode", ["explicit", "none", "poll"])
async def test_start_needs_no_policy_in_the_repository_and_works_in_each_mode(
    rollouts: RolloutBench, mode: str
) -> None:
    rollouts.bench.add("m")
    named = {"load_model": ["m"]} if mode == "explicit" else {}
    made = await rollouts.manager(model_control_mode=mode, **named)
    rollouts.bench.add("m", versions=(2,))
    spec = {"steps": [5], "judge": {"latency": None}}
    started = await act(made, "start", candidate=2, spec=spec)
    assert state(started) == (STEP, 5) and started.spec.judge.latency is None
    assert started.history[0].who == "ann" and ready(made) == [1, 2]


async def test_start_takes_a_weight_of_its_own(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    assert state(await act(made, "start", weight=30)) == (STEP, 30)
    assert state(await rollouts.after(made, 60, ok=100)) == (STEP, 50)


async def test_no_room_pauses_until_it_is_resumed(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    rollouts.bench.serve.failures["m:2"] = "Internal: CUDA out of memory"
    assert "out of memory" in await refusal(made, "start")
    paused = await status(made)
    assert paused.state is PAUSED and paused.reason == "no room: Internal: CUDA out of memory"
    assert ready(made) == [1] and made.table.all_ready
    assert "no room" in await refusal(made, "promote")
    await made.load(LoadRequest("m"))
    assert rollouts.bench.serve.deployed == ["m:1", "m:2"], "only who resumes it tries it again"
    rollouts.bench.serve.failures.clear()
    assert (await act(made, "resume")).state is RolloutState.LOADING
    assert state(await rollouts.after(made)) == (STEP, 10)


async def test_without_room_for_both_the_stable_version_is_unloaded_first_if_asked(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.serving("strategy: resource_preserving\n")
    rollouts.bench.serve.failures["m:2"] = "Internal: out of memory"
    with pytest.raises(InferError, match="out of memory"):
        await made.load(LoadRequest("m"))
    assert rollouts.bench.serve.deployed[:2] == ["m:1", "m:2"] and rollouts.bench.serve.deleted[0] == "m:1"
    assert (await status(made)).state is FAILED
    await until(lambda: ready(made) == [1])
    rollouts.bench.serve.failures.clear()
    rollouts.bench.serve.gates["m"] = asyncio.Event()
    starting = asyncio.create_task(act(made, "start"))
    await until(lambda: rollouts.bench.serve.loading == 1)
    await act(made, "abort")
    rollouts.bench.serve.gates["m"].set()
    assert state(await rollouts.after(made)) == (ABORTED, 0)
    await until(lambda: ready(made) == [1])
    await asyncio.gather(starting, return_exceptions=True)
    assert state(await act(made, "start")) == (DONE, 100)
    assert ready(made) == [2] and split(made) is None


async def test_an_ensemble_has_no_rollouts(rollouts: RolloutBench) -> None:
    config = ensemble(step({"x": "IN"}, {"y": "OUT"}, "called"))
    rollouts.bench.add("called", model())
    directory = rollouts.bench.add("m", config)
    (directory / "rollout.yaml").write_text(POLICY)
    made = await rollouts.manager(load_model=["m"])
    rollouts.bench.add("m", config, (2,))
    assert await refusal(made, "start") == (
        "model 'm' is an ensemble, whose versions have the same configuration and no files: roll out the"
        " models that it calls"
    )
    await made.load(LoadRequest("m"))
    assert ready(made) == [2] and split(made) is None


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("pause", {}, "no rollout of model 'm' is on; the last one, from version 1 to 2, is aborted"),
    ("start", {"candidate": 7}, "model 'm' has no version 7 in its repository; it has 1, 2"),
    ("start", {"weight": 101}, "weight is 101, but it is a percentage: give 0 to 100"),
    ("start", {"spec": {"steps": [5, 3]}}, "spec: steps: 3 follows 5, but steps must rise"),
]


async def test_a_change_that_makes_no_sense_is_refused(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    on = "the rollout of 'm' from version 1 to 2"
    assert await refusal(made, "start") == f"{on} is on already (step at 10 %)"
    assert await refusal(made, "resume") == f"cannot resume {on}: it is not paused"
    assert await refusal(made, "set") == f"cannot set {on}: give a weight, a spec or both"
    assert await refusal(made, "set", weight=-1) == "weight is -1, but it is a percentage: give 0 to 100"
    await act(made, "pause")
    assert await refusal(made, "pause") == f"cannot pause {on}: it is paused already (paused on request)"
    await act(made, "abort")
    assert await refusal(made, "promote") == f"cannot promote {on}: it is being rolled back"
    await rollouts.after(made)
    for action, fields, text in REFUSED:
        assert await refusal(made, action, **fields) == text
    assert state(await act(made, "start")) == (STEP, 10)
    await act(made, "promote")
    await rollouts.after(made, 301)
    text = "there is nothing to roll out: requests to model 'm' without a version mean version 2, and the "
    assert await refusal(made, "start") == text + "newest of the repository is 2"
    await made.unload("m")
    text = "no version of model 'm' is loaded: load it, a first load needs no rollout"
    assert await refusal(made, "start") == text


async def test_the_other_versions_of_a_model_stay_where_its_policy_selects_them(
    rollouts: RolloutBench,
) -> None:
    config = CONFIG + "version_policy { all {} }\n"
    made = await rollouts.serving(config=config)
    await made.load(LoadRequest("m"))
    assert ready(made) == [1, 2] and made.table.resolve("m").version == 1
    await act(made, "promote")
    await rollouts.after(made, 301)
    assert ready(made) == [1, 2] and split(made) is None and made.table.resolve("m").version == 2
