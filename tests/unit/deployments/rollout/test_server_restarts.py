"""A server that is stopped in the middle of a rollout, or after one, and the one that is started after it.

Nothing of the cluster is left: neither what Serve ran nor its store. Only the files of the state are.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import InferError
from app.core.rollout.outcomes import VersionOutcomes
from app.core.rollout.status import RolloutState
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.rollout.rollout_bench import (
    ABORTED,
    DONE,
    FAILED,
    PAUSED,
    POLICY,
    PROMOTED,
    STEP,
    RolloutBench,
    act,
    ready,
    split,
    state,
    status,
)
from tests.unit.deployments.rollout.test_recovery import (
    Reach,
    aborted,
    failed,
    first_step,
    kill,
    loading,
    paused,
    promoted,
    rolling_back,
    second_step,
    shadow,
)
from tests.waiting import until

MODES: dict[str, dict[str, Any]] = {
    "none": {"model_control_mode": "none"},
    "poll": {"model_control_mode": "poll"},
    "explicit": {"load_model": ["m"]},
}


async def stopped(rollouts: RolloutBench, made: RepositoryManager) -> None:
    """End the server with all that its cluster has."""
    await kill(rollouts, made)
    assert made._state_files is not None
    made._state_files.close()
    serve = rollouts.bench.serve
    serve.running.clear()
    serve.store.values.clear()
    serve.deployed.clear()
    serve.splits = ()


async def restarted(rollouts: RolloutBench, made: RepositoryManager, mode: str = "none") -> RepositoryManager:
    await stopped(rollouts, made)
    return await rollouts.manager(**MODES[mode])


async def done(rollouts: RolloutBench) -> RepositoryManager:
    made = await promoted(rollouts)
    await rollouts.after(made, 301)
    return made


RESTARTED: list[tuple[Reach, tuple[RolloutState, float], list[int]]] = [
    (shadow, (RolloutState.SHADOW, 0), [1, 2]),
    (first_step, (STEP, 10), [1, 2]),
    (second_step, (STEP, 50), [1, 2]),
    (paused, (PAUSED, 10), [1, 2]),
    (promoted, (PROMOTED, 100), [1, 2]),
    (done, (DONE, 100), [2]),
    (failed, (FAILED, 0), [1]),
    (aborted, (ABORTED, 0), [1]),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("reach", "expected", "serving"), RESTARTED, ids=[r.__name__ for r, *_ in RESTARTED])
async def test_the_same_versions_get_the_same_shares(
    rollouts: RolloutBench,
    reach: Reach,
    expected: tuple[RolloutState, float],
    serving: list[int],
    mode: str,
) -> None:
    made = await reach(rollouts)
    before, routed, meant = await status(made), split(made), made.table.resolve("m").version
    again = await restarted(rollouts, made, mode)
    after = await status(again)
    assert state(after) == expected and ready(again) == serving and again.table.resolve("m").version == meant
    assert (after.rollout, after.stable, after.candidate) == (before.rollout, 1, 2)
    found = split(again)
    if routed is None:
        assert found is None
    else:
        kept = ("weight", "salt", "sticky", "match", "mirror", "stable", "candidate", "held_back")
        assert found is not None
        assert [getattr(found, name) for name in kept] == [getattr(routed, name) for name in kept]
    assert sorted(rollouts.bench.serve.deployed) == [f"m:{version}" for version in serving]
    if mode == "explicit":
        await again.load(LoadRequest("m"))
        assert ready(again) == serving, "nor by a load"


async def test_no_table_has_another_share(rollouts: RolloutBench) -> None:
    """Not even while the versions are loaded, or between the load and what follows from it."""
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    made = rollouts.bench.begin(model_control_mode="none")
    ingress = rollouts.bench.ingress(made)
    await rollouts.started(made)
    await until(lambda: ingress.table.number == made.table.number)
    serving = [table for table in ingress.received if table.ready_versions("m")]
    assert serving and all(table.ready_versions("m") == [1, 2] for table in serving)
    assert all(table.split_by_name["m"].weight == 500_000 for table in ingress.received)


async def test_a_candidate_that_was_loading_does_not_keep_the_stable_version_waiting(
    rollouts: RolloutBench,
) -> None:
    again = await restarted(rollouts, await loading(rollouts))
    assert ready(again) == [1] and (await status(again)).state is RolloutState.LOADING
    gate = rollouts.bench.serve.gates["m"] = asyncio.Event()
    again._rollouts.tick()
    await until(lambda: "m:2" in rollouts.bench.serve.deployed)
    await again.lifecycle.publish()
    assert again.table.all_ready and again.table.all_loaded, "nor the server"
    gate.set()
    assert state(await rollouts.after(again)) == (STEP, 10) and ready(again) == [1, 2]


async def test_what_was_being_rolled_back_gets_nothing(rollouts: RolloutBench) -> None:
    again = await restarted(rollouts, await rolling_back(rollouts))
    assert ready(again) == [1] and rollouts.bench.serve.deployed == ["m:1"]
    assert state(await rollouts.after(again)) == (ABORTED, 0) and ready(again) == [1]


async def test_without_a_load_a_rollout_waits_in_mode_explicit(rollouts: RolloutBench) -> None:
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    again = await rollouts.manager()
    await rollouts.after(again)
    assert ready(again) == [] and rollouts.bench.serve.deployed == []
    await again.load(LoadRequest("m"))
    assert state(await status(again)) == (STEP, 50) and ready(again) == [1, 2]


async def test_a_candidate_that_no_longer_loads_does_not_take_the_stable_version_along(
    rollouts: RolloutBench,
) -> None:
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    rollouts.bench.serve.failures["m:2"] = "Internal: no such layer"
    again = await rollouts.manager(model_control_mode="none")
    assert state(await status(again)) == (FAILED, 0) and ready(again) == [1]
    assert again.table.all_loaded and again.table.all_ready


async def test_without_the_stable_version_on_disk_the_candidate_answers_and_a_person_decides(
    rollouts: RolloutBench,
) -> None:
    made = await second_step(rollouts)
    (rollouts.bench.repository / "m" / "1").rmdir()
    again = await restarted(rollouts, made)
    assert state(await status(again)) == (PAUSED, 50) and ready(again) == [2]
    assert (await status(again)).reason == "stable version 1 is gone"


def rewritten(repository: Path, text: bytes) -> None:
    """Write the file of version 2, as another copy of the repository has it."""
    path = repository / "m" / "2" / "weights"
    path.write_bytes(text)
    os.utime(path, ns=(path.stat().st_mtime_ns + 5_000_000_000,) * 2)


async def with_weights(rollouts: RolloutBench, policy: str = POLICY) -> RepositoryManager:
    made = await rollouts.serving(policy)
    rewritten(rollouts.bench.repository, b"bad")
    await made.load(LoadRequest("m"))
    return made


async def test_a_rejected_version_is_known_by_what_its_files_say(rollouts: RolloutBench) -> None:
    made = await with_weights(rollouts)
    await act(made, "abort")
    await rollouts.after(made)
    await stopped(rollouts, made)
    rewritten(rollouts.bench.repository, b"bad")
    again = await rollouts.manager(model_control_mode="none")
    assert ready(again) == [1]
    await stopped(rollouts, again)
    rewritten(rollouts.bench.repository, b"new")
    third = await rollouts.manager(model_control_mode="none")
    assert ready(third) == [2], "new files are a new version"


async def test_a_candidate_that_was_copied_anew_goes_on(rollouts: RolloutBench) -> None:
    made = await with_weights(rollouts)
    await rollouts.after(made, 61, ok=100)
    await stopped(rollouts, made)
    rewritten(rollouts.bench.repository, b"bad")
    again = await rollouts.manager(model_control_mode="none")
    assert state(await status(again)) == (STEP, 50)


async def test_a_repository_elsewhere_is_another_one(rollouts: RolloutBench) -> None:
    made = await aborted(rollouts)
    await stopped(rollouts, made)
    other = rollouts.bench.repository.parent / "other"
    shutil.copytree(rollouts.bench.repository, other)
    again = await rollouts.manager(model_control_mode="none", model_repository=[str(other)])
    assert ready(again) == [2]
    await stopped(rollouts, again)
    both = await rollouts.manager(
        model_control_mode="none", model_repository=[str(rollouts.bench.repository)]
    )
    assert ready(both) == [1]


async def test_a_server_beside_one_that_runs_does_not_take_its_rollout(
    rollouts: RolloutBench, caplog: pytest.LogCaptureFixture
) -> None:
    made = await second_step(rollouts)
    serve = rollouts.bench.serve
    serve.running.clear()
    serve.store.values.clear()
    beside = await rollouts.manager(model_control_mode="none")
    assert ready(beside) == [2]
    await act(made, "pause")
    with pytest.raises(InferError, match="no rollout"):
        await status(beside)


async def test_what_cannot_be_written_is_no_failure(
    rollouts: RolloutBench, caplog: pytest.LogCaptureFixture
) -> None:
    state_directory = rollouts.bench.repository.parent / "state"
    state_directory.write_text("")
    made = await second_step(rollouts)
    assert "are forgotten at the next start" in caplog.text and ready(made) == [1, 2]


async def test_counters_of_the_whole_rollout_are_kept(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    rollouts.now += 10
    await rollouts.report(made, VersionOutcomes(ok=70, failed=2))
    await made.lifecycle.rollouts.save("m")
    again = await restarted(rollouts, made)
    total = (await status(again)).total.candidate
    assert (total.ok, total.failed) == (70, 2)


ON_DEMAND = {"model_control_mode": "none", "model_memory_bytes": 150 << 20}


@pytest.mark.parametrize("mode", MODES)
async def test_a_load_that_ends_because_the_server_stops_rejects_nothing(
    rollouts: RolloutBench, mode: str
) -> None:
    made = await rollouts.serving()
    serve = rollouts.bench.serve
    serve.stopping = True
    serve.failures["m:2"] = "Internal: the replica could not start: it was killed"
    with pytest.raises(InferError, match="it was killed"):
        await made.load(LoadRequest("m"))
    serve.failures.clear()
    serve.stopping = False
    again = await restarted(rollouts, made, mode)
    assert state(await rollouts.after(again)) == (STEP, 10) and ready(again) == [1, 2]


async def test_a_rejected_version_is_not_loaded_by_a_request_either(rollouts: RolloutBench) -> None:
    """Where a model is loaded by its first request."""
    made = await aborted(rollouts)
    await stopped(rollouts, made)
    again = await rollouts.manager(**ON_DEMAND)
    assert ready(again) == [1] and rollouts.bench.serve.deployed == []
    await again.demand("m")
    assert ready(again) == [1] and rollouts.bench.serve.deployed == ["m:1"]


async def test_a_request_loads_both_versions_of_a_rollout_that_is_on(rollouts: RolloutBench) -> None:
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    again = await rollouts.manager(**ON_DEMAND)
    assert ready(again) == [1, 2] and rollouts.bench.serve.deployed == []
    await again.demand("m")
    assert state(await status(again)) == (STEP, 50)
    assert sorted(rollouts.bench.serve.deployed) == ["m:1", "m:2"]


async def test_a_rollout_that_waits_for_a_load_can_be_aborted(rollouts: RolloutBench) -> None:
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    again = await rollouts.manager()
    await act(again, "abort")
    assert state(await rollouts.after(again)) == (ABORTED, 0)
    assert rollouts.bench.serve.deployed == []
    await again.load(LoadRequest("m"))
    assert ready(again) == [1]


async def test_a_stable_version_that_no_longer_loads_pauses_the_rollout(rollouts: RolloutBench) -> None:
    """The candidate is not to get all requests because of that."""
    made = await second_step(rollouts)
    await stopped(rollouts, made)
    rollouts.bench.serve.failures["m:1"] = "Internal: no such layer"
    again = await rollouts.manager(model_control_mode="none")
    found = await status(again)
    assert found.state is PAUSED and "not loaded after a restart: " in found.reason and ready(again) == []
    rollouts.bench.serve.failures.clear()
    await act(again, "resume")
    await rollouts.after(again)
    assert state(await rollouts.after(again)) == (STEP, 50) and ready(again) == [1, 2]
