"""Rollouts as a repository manager carries them out, over a fake of Serve."""

import asyncio

import pytest
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, InferError
from app.core.rollout.outcomes import VersionOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutState
from app.routing.manager_client import LoadRequest
from app.routing.table import ModelState
from deployments.rollout.judging.judge import judge
from deployments.rollout.states.selection import Offer
from tests.unit.deployments.model_directories import CONFIG
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
from tests.waiting import until


async def test_a_new_version_is_promoted_step_by_step_and_the_stable_one_retired(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    assert ready(made) == [1, 2] and made.table.resolve("m").version == 1
    assert state(await status(made)) == (STEP, 10)
    found = split(made)
    assert found is not None and (found.stable, found.candidate, found.weight) == (1, 2, 100_000)
    assert state(await rollouts.after(made, 61)) == (STEP, 10), "silence does not promote"
    assert state(await rollouts.after(made, 1, ok=100)) == (STEP, 50)
    assert state(await rollouts.after(made, 40, ok=100)) == (STEP, 50), "too early"
    assert state(await rollouts.after(made, 20)) == (PROMOTED, 100)
    found = split(made)
    assert found is not None and found.weight == 990_000 and found.held_back
    assert state(await rollouts.after(made, 299)) == (PROMOTED, 100) and ready(made) == [1, 2]
    ended = await rollouts.after(made, 2)
    assert state(ended) == (DONE, 100) and split(made) is None
    assert ready(made) == [2]
    await until(lambda: rollouts.bench.serve.deleted == ["m:1"])
    assert [event.state for event in ended.history] == ["loading", "step", "step", "promoted", "done"]


async def test_without_a_policy_a_new_version_takes_over_at_once(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    await made.load(LoadRequest("m"))
    assert ready(made) == [2] and split(made) is None
    with pytest.raises(InferError, match="model 'm' has had no rollout; one begins by") as caught:
        await made.rollout("m")
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_a_candidate_of_another_configuration_says_so(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    wider = 'input { name: "IN" data_type: TYPE_FP32 dims: [ 8 ] }'
    rollouts.bench.add("m", f"{CONFIG} {wider}", versions=(2,))
    await made.load(LoadRequest("m"))
    found = await status(made)
    assert found.reason == "loaded; of another configuration: a new input 'IN'"
    assert found.history[-1].why == found.reason


async def test_a_first_load_has_no_steps(rollouts: RolloutBench) -> None:
    (rollouts.bench.add("m", versions=(1, 2)) / "rollout.yaml").write_text(POLICY)
    made = await rollouts.manager(load_model=["m"])
    assert ready(made) == [2] and split(made) is None


async def test_a_bad_policy_fails_the_load_and_what_was_served_still_is(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    path = rollouts.bench.repository / "m" / "rollout.yaml"
    path.write_text("steps: [1, 5]\nstpe: {}\n")
    with pytest.raises(InferError) as caught:
        await made.load(LoadRequest("m"))
    assert caught.value.message == (
        "failed to load 'm', failed to poll from model repository: "
        f"{path}: Object contains unknown field `stpe`"
    )
    assert made.table.resolve("m").version == 1


async def test_a_candidate_that_cannot_be_loaded_fails_and_is_not_tried_again(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.serving()
    rollouts.bench.serve.failures["m:2"] = "Internal: no such layer"
    with pytest.raises(InferError, match="no such layer"):
        await made.load(LoadRequest("m"))
    failed = await status(made)
    assert state(failed) == (FAILED, 0) and failed.reason == "Internal: no such layer"
    assert ready(made) == [1] and made.table.all_ready and split(made) is None
    assert made.table.rollout_failures == {"m": 1}
    rollouts.bench.serve.failures.clear()
    await made.load(LoadRequest("m"))
    assert ready(made) == [1] and rollouts.bench.serve.deployed == ["m:1", "m:2"]
    again = await rollouts.manager(load_model=["m"])
    assert ready(again) == [1], "nor by a manager that starts"
    assert state(await act(again, "start")) == (STEP, 10)
    assert ready(again) == [1, 2]


async def test_a_failed_candidate_that_was_written_anew_is_tried_again(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    rollouts.bench.serve.failures["m:2"] = "Internal: no such layer"
    with pytest.raises(InferError):
        await made.load(LoadRequest("m"))
    rollouts.bench.serve.failures.clear()
    (rollouts.bench.repository / "m" / "2" / "weights").write_bytes(b"better")
    await made.load(LoadRequest("m"))
    assert state(await status(made)) == (STEP, 10)


async def test_the_stable_version_stays_as_it_runs_when_the_configuration_changes(
    rollouts: RolloutBench,
) -> None:
    """A new version often comes with a new configuration, which is part of what is tried."""
    made = await rollouts.serving()
    rollouts.bench.add("m", CONFIG.replace("4", "8"))
    await made.load(LoadRequest("m"))
    assert rollouts.bench.serve.deployed == ["m:1", "m:2"]
    rollouts.alarms = ("too many errors",)
    await rollouts.after(made)
    assert state(await rollouts.after(made)) == (FAILED, 0)
    await made.load(LoadRequest("m"))
    assert rollouts.bench.serve.deployed == ["m:1", "m:2"] and ready(made) == [1]
    loaded = mc.ModelConfig.FromString(made.lifecycle.loaded["m:1"].config)
    assert loaded.max_batch_size == 4, "as it runs"


async def test_an_alarm_rolls_back_and_deletes_only_after_every_ingress_knows(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    rollouts.bench.serve.ingresses = 1
    ingress = rollouts.bench.ingress(made)
    await until(lambda: ingress.table.number == made.table.number)
    rollouts.alarms = ("errors: 30 of 40 requests failed",)
    ingress.let_apply.clear()
    rollouts.now += 1
    made._rollouts.tick()
    await until(lambda: ingress.received[-1].splits[0].weight == 0)
    assert (await status(made)).state is RolloutState.ROLLING_BACK and not rollouts.bench.serve.deleted
    ingress.let_apply.set()
    await until(lambda: not made._rollouts._busy)
    failed = await rollouts.after(made)
    assert state(failed) == (FAILED, 0) and failed.reason == "errors: 30 of 40 requests failed"
    await until(lambda: rollouts.bench.serve.deleted == ["m:2"])
    assert ready(made) == [1] and split(made) is None and made.table.all_ready
    assert made.table.rollout_failures == {"m": 1}
    assert made.lifecycle.entries["m"][2].state is ModelState.UNAVAILABLE


async def test_failures_that_ingresses_report_are_judged(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    made._rollouts._judge = judge
    rollouts.now += 10
    await rollouts.report(made, VersionOutcomes(ok=10, failed=30))
    assert (await rollouts.after(made)).state is RolloutState.ROLLING_BACK
    failed = await rollouts.after(made)
    assert failed.reason.startswith("errors: 30 of 40 (75.00%) of the candidate's requests failed")


async def test_a_manager_judges_as_the_judge_does(rollouts: RolloutBench) -> None:
    assert rollouts.bench.begin()._rollouts._judge is judge


async def test_an_alarm_pauses_where_the_policy_says_so(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping(POLICY + "rollback: pause\n")
    rollouts.alarms = ("slow",)
    paused = await rollouts.after(made)
    assert state(paused) == (PAUSED, 10) and paused.resumes is STEP and paused.reason == "slow"
    rollouts.alarms = ()
    assert state(await act(made, "resume")) == (STEP, 10)


async def test_an_ingress_that_cannot_reach_the_candidate_ends_the_rollout_at_once(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    await rollouts.report(made, VersionOutcomes(), unavailable="lost twice")
    found = split(made)
    assert found is not None and found.weight == 0
    ended = await rollouts.after(made)
    assert state(ended) == (FAILED, 0)
    assert ended.reason == "the candidate is unavailable: lost twice"


async def test_a_promoted_candidate_without_a_replica_does_not_end_the_stable_version(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    await act(made, "promote")
    rollouts.now += 290
    await rollouts.report(made, VersionOutcomes(), absent=True)
    assert state(await rollouts.after(made, 20)) == (PROMOTED, 100) and ready(made) == [1, 2]
    assert state(await rollouts.after(made, 279)) == (PROMOTED, 100)
    assert state(await rollouts.after(made, 2)) == (DONE, 100)


async def test_a_report_is_added_once(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    rollouts.now += 10
    for number in (1, 1, 2):
        await rollouts.report(made, VersionOutcomes(ok=5), number=number)
    assert (await status(made)).outcomes.candidate.ok == 10


async def test_abort_deletes_the_candidate_which_is_not_tried_again(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    rolling = await act(made, "abort")
    assert rolling.state is RolloutState.ROLLING_BACK and rolling.history[-1].who == "ann"
    assert state(await rollouts.after(made)) == (ABORTED, 0)
    await until(lambda: rollouts.bench.serve.deleted == ["m:2"])
    await made.load(LoadRequest("m"))
    assert ready(made) == [1] and made.table.rollout_failures == {}


async def test_abort_gives_up_a_load(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    rollouts.bench.serve.gates["m"] = asyncio.Event()
    loading = asyncio.create_task(made.load(LoadRequest("m")))
    await until(lambda: rollouts.bench.serve.deployed[-1] == "m:2")
    await act(made, "abort")
    assert state(await rollouts.after(made)) == (ABORTED, 0)
    with pytest.raises(InferError, match="unloaded while it was loading"):
        await loading
    assert ready(made) == [1] and made.table.all_ready


async def test_promote_and_abort_after_it_are_a_table_each(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    assert state(await act(made, "promote")) == (PROMOTED, 100)
    await act(made, "abort")
    found = split(made)
    assert found is not None and found.weight == 0 and ready(made) == [1, 2]
    assert rollouts.bench.serve.deployed == ["m:1", "m:2"]


async def test_a_newer_version_replaces_the_candidate_at_the_first_step(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await rollouts.after(made, 60, ok=100)
    first = await status(made)
    rollouts.bench.add("m", versions=(3,))
    await made.load(LoadRequest("m"))
    second = await status(made)
    assert (second.stable, second.candidate, second.percent) == (1, 3, 10)
    assert second.rollout != first.rollout and ready(made) == [1, 3]
    await until(lambda: rollouts.bench.serve.deleted == ["m:2"])


async def test_a_candidate_that_was_written_anew_begins_at_the_first_step(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await rollouts.after(made, 60, ok=100)
    first = await status(made)
    (rollouts.bench.repository / "m" / "2" / "weights").write_bytes(b"better")
    await made.load(LoadRequest("m"))
    second = await status(made)
    assert state(first) == (STEP, 50) and state(second) == (STEP, 10)
    assert second.rollout != first.rollout and list(made.table.applications) == ["m:1", "m:2@2"]


async def test_the_end_of_a_rollout_does_not_end_the_one_after_it(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await act(made, "abort")
    async with made.lifecycle.locks.acquire("m"):
        made._rollouts.tick()
        await until(lambda: made.lifecycle.locks.users("m") == 2)
        offer = Offer("m", (3,), (1, 2, 3), (1,), None, str)
        await made.lifecycle.rollouts.begin(offer, (1, 3), RolloutSpec())
    await until(lambda: not made._rollouts._busy)
    assert (await status(made)).state is RolloutState.LOADING


async def test_a_newer_version_after_the_promotion_goes_on_from_the_promoted_one(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    await act(made, "promote")
    rollouts.bench.add("m", versions=(3,))
    await made.load(LoadRequest("m"))
    found = await status(made)
    assert (found.stable, found.candidate) == (2, 3) and ready(made) == [2, 3]


async def test_a_candidate_that_is_removed_from_the_repository_ends_the_rollout(
    rollouts: RolloutBench,
) -> None:
    made = await rollouts.stepping()
    (rollouts.bench.repository / "m" / "2").rmdir()
    await made.load(LoadRequest("m"))
    ended = await status(made)
    assert state(ended) == (ABORTED, 0) and ended.reason == "version 2 is no longer to be served"
    assert ready(made) == [1] and split(made) is None


async def test_unload_ends_the_rollout_and_the_next_load_is_a_first_one(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await made.unload("m")
    ended = await status(made)
    assert state(ended) == (ABORTED, 0) and ended.reason == "the model was unloaded"
    await made.load(LoadRequest("m"))
    assert ready(made) == [2]


async def test_files_of_a_request_are_refused_while_a_rollout_is_on(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    with pytest.raises(InferError, match="'m' has a rollout: promote or abort it before a load with other"):
        await made.load(LoadRequest("m", '{"backend": "identity"}', {"1/weights": b"x"}))


async def test_all_candidates_that_have_failed_are_remembered(rollouts: RolloutBench) -> None:
    made = await rollouts.serving()
    for version in (2, 3):
        rollouts.bench.add("m", versions=(version,))
        rollouts.bench.serve.failures[f"m:{version}"] = "Internal: no such layer"
        with pytest.raises(InferError):
            await made.load(LoadRequest("m"))
    (rollouts.bench.repository / "m" / "3").rmdir()
    await made.load(LoadRequest("m"))
    assert ready(made) == [1] and rollouts.bench.serve.deployed == ["m:1", "m:2", "m:3"]


async def test_what_was_rejected_is_not_served_though_nothing_else_is_there(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await act(made, "abort")
    await rollouts.after(made)
    await made.unload("m")
    (rollouts.bench.repository / "m" / "1").rmdir()
    with pytest.raises(InferError, match=r"version 2 was rolled back on .*'nereid rollout forget m'"):
        await made.load(LoadRequest("m"))
    assert ready(made) == []


async def test_an_end_is_shown_when_every_ingress_routes_by_it(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping(POLICY.replace("[10, 50]", "[10]"))
    ingress = rollouts.bench.ingress(made)
    assert state(await rollouts.after(made, 100, ok=100)) == (PROMOTED, 100)
    await until(lambda: ingress.table.number == made.table.number)
    ingress.let_apply.clear()
    rollouts.now += 301
    made._rollouts.tick()
    await until(lambda: split(made) is None)
    assert state(await status(made)) == (PROMOTED, 100)
    ingress.let_apply.set()
    await until(lambda: not made._rollouts._busy)
    assert state(await status(made)) == (DONE, 100) and not ingress.table.splits
