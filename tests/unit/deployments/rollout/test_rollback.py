"""Going back to what served before, what is left out then, and the history that says so."""

import msgspec
import pytest

from app.core.errors import ErrorCode, InferError
from app.core.rollout.history import RolloutHistory
from app.core.rollout.outcomes import VersionOutcomes
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from tests.unit.deployments.model_directories import CONFIG
from tests.unit.deployments.rollout.rollout_bench import (
    ABORTED,
    DONE,
    FAILED,
    POLICY,
    PROMOTED,
    STEP,
    RolloutBench,
    act,
    ready,
    refusal,
    split,
    state,
    status,
)
from tests.unit.deployments.rollout.test_server_restarts import done, restarted, stopped
from tests.waiting import until


async def history(made: RepositoryManager) -> RolloutHistory:
    return msgspec.msgpack.decode(await made.rollout_history("m"), type=RolloutHistory)


async def told(made: RepositoryManager) -> list[tuple[str, int, str]]:
    return [(event.what, event.version, event.who) for event in (await history(made)).events]


async def three(rollouts: RolloutBench) -> RepositoryManager:
    """Return a manager of a model whose version 1 was good, 2 has failed and 3 was promoted."""
    made = await rollouts.stepping()
    rollouts.alarms = ("errors: 30 of 40 requests failed",)
    await rollouts.after(made)
    await rollouts.after(made)
    rollouts.alarms = ()
    assert (await status(made)).state is FAILED
    rollouts.bench.add("m", versions=(3,))
    await made.load(LoadRequest("m"))
    await act(made, "promote")
    assert state(await rollouts.after(made, 301)) == (DONE, 100) and ready(made) == [3]
    return made


async def test_to_what_served_before_the_last_rollout(rollouts: RolloutBench) -> None:
    made = await done(rollouts)
    assert ready(made) == [2]
    found = await act(made, "rollback", why="it is wrong about cats")
    assert ready(made) == [1] and state(found) == (ABORTED, 0)
    assert found.reason == "rolled back to version 1 for: it is wrong about cats"
    assert [(each.version, each.who) for each in found.rejected] == [(2, "ann")]
    await made.load(LoadRequest("m"))
    assert ready(made) == [1], "nor does a load bring it back"
    again = await restarted(rollouts, made)
    assert ready(again) == [1] and again.table.resolve("m").version == 1


async def test_what_serves_is_retired_only_when_the_other_one_serves(rollouts: RolloutBench) -> None:
    made = await done(rollouts)
    ingress = rollouts.bench.ingress(made)
    await until(lambda: ingress.table.number == made.table.number)
    del ingress.received[:-1]
    await act(made, "rollback")
    await until(lambda: ingress.table.number == made.table.number)
    assert all(table.ready_versions("m") in ([2], [1, 2], [1]) for table in ingress.received)


async def test_over_a_version_that_has_failed(rollouts: RolloutBench) -> None:
    made = await three(rollouts)
    await act(made, "rollback")
    assert ready(made) == [1]
    assert [each.version for each in (await status(made)).rejected] == [2, 3]


async def test_step_by_step_and_forth_again(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    for version in (2, 3):
        rollouts.bench.add("m", versions=(version,))
        await made.load(LoadRequest("m"))
    assert ready(made) == [3]
    await act(made, "rollback")
    assert ready(made) == [2]
    await act(made, "rollback")
    assert ready(made) == [1]
    assert "no other version has served" in await refusal(made, "rollback")
    await act(made, "rollback", version=3)
    assert ready(made) == [3] and [each.version for each in (await status(made)).rejected] == [2]


async def test_to_a_version_that_the_policy_does_not_select(rollouts: RolloutBench) -> None:
    made = await three(rollouts)
    config = CONFIG + "version_policy { specific { versions: [3] } }\n"
    rollouts.bench.add("m", config)
    await made.load(LoadRequest("m"))
    await act(made, "rollback", version=1)
    assert ready(made) == [1]


async def test_when_the_version_that_serves_is_gone_from_the_disk(rollouts: RolloutBench) -> None:
    made = await three(rollouts)
    (rollouts.bench.repository / "m" / "3").rmdir()
    await act(made, "rollback")
    assert ready(made) == [1]


async def test_a_removed_version_is_followed_by_the_one_before_that_was_not_rejected(
    rollouts: RolloutBench, caplog: pytest.LogCaptureFixture
) -> None:
    made = await three(rollouts)
    (rollouts.bench.repository / "m" / "3").rmdir()
    caplog.clear()
    await made.load(LoadRequest("m"))
    assert ready(made) == [1]
    assert "version 2 was rolled back on" in caplog.text and "served is version 1" in caplog.text


async def test_of_a_rollout_that_is_on_is_an_abort(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    await act(made, "promote")
    found = await act(made, "rollback", why="ticket 7")
    assert found.reason == "rolled back on request: ticket 7" and made.table.resolve("m").version == 1
    routed = split(made)
    assert routed is not None and routed.weight == 0
    assert state(await rollouts.after(made)) == (ABORTED, 0) and ready(made) == [1]


async def test_of_a_rollout_that_is_on_to_another_version(rollouts: RolloutBench) -> None:
    made = await three(rollouts)
    rollouts.bench.add("m", versions=(4,))
    await made.load(LoadRequest("m"))
    assert state(await status(made)) == (STEP, 10)
    await act(made, "rollback", version=1)
    assert ready(made) == [1]
    assert [each.version for each in (await status(made)).rejected] == [2, 4, 3]


async def test_that_cannot_be_loaded_changes_nothing(rollouts: RolloutBench) -> None:
    made = await done(rollouts)
    rollouts.bench.serve.failures["m:1"] = "Internal: no such layer"
    assert "no such layer" in await refusal(made, "rollback")
    assert ready(made) == [2] and not (await status(made)).rejected
    rollouts.bench.serve.failures.clear()
    await made.load(LoadRequest("m"))
    again = await restarted(rollouts, made)
    assert ready(again) == [2]
    assert (await history(again)).version == 2


async def test_without_any_rollout_before(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    await made.load(LoadRequest("m"))
    await act(made, "rollback")
    assert ready(made) == [1]
    assert await told(made) == [
        ("loaded", 1, "nereid"),
        ("loaded", 2, "nereid"),
        ("rolled back", 1, "ann"),
    ]


async def test_a_model_whose_newest_version_does_not_load_at_the_start(rollouts: RolloutBench) -> None:
    made = await rollouts.serving(policy=None)
    await stopped(rollouts, made)
    rollouts.bench.serve.failures["m:2"] = "Internal: no such layer"
    again = await rollouts.manager(model_control_mode="none")
    assert ready(again) == []
    await act(again, "rollback")
    assert ready(again) == [1]


REFUSED = [
    ({"version": 2}, "version 2 answers requests without a version already"),
    ({"version": 9}, "version 9 is not there, its repository has 1, 2"),
]


@pytest.mark.parametrize(("fields", "text"), REFUSED)
async def test_what_makes_no_sense_is_refused(
    rollouts: RolloutBench, fields: dict[str, int], text: str
) -> None:
    made = await done(rollouts)
    assert text in await refusal(made, "rollback", **fields)
    assert ready(made) == [2] and state(await status(made)) == (DONE, 100)


async def test_the_index_says_why_a_version_gets_nothing(rollouts: RolloutBench) -> None:
    made = await done(rollouts)
    await act(made, "rollback", why="ticket 7")
    again = await restarted(rollouts, made)
    for manager in (made, again):
        rows = {version: (state, reason) for _, version, state, reason in await manager.index()}
        assert rows["1"] == ("READY", "")
        assert rows["2"][0] == "UNAVAILABLE" and "by ann for: ticket 7; it gets no" in rows["2"][1]
        assert "'nereid rollout forget m' or new files bring it back" in rows["2"][1]


async def test_what_is_forgotten_is_new(rollouts: RolloutBench) -> None:
    made = await done(rollouts)
    assert "no version of model 'm' is rejected; rejected: none" in await refusal(made, "forget")
    await act(made, "rollback")
    assert "not version 7 of model 'm' is rejected; rejected: 2" in await refusal(made, "forget", version=7)
    assert not (await act(made, "forget", version=2)).rejected
    await made.load(LoadRequest("m"))
    assert state(await status(made)) == (STEP, 10) and (await status(made)).candidate == 2


async def test_what_is_forgotten_is_loaded_in_mode_poll(rollouts: RolloutBench) -> None:
    made = await restarted(rollouts, await done(rollouts), "poll")
    await act(made, "rollback")
    await act(made, "forget")
    await until(lambda: made.lifecycle.rollouts.is_on("m"))


async def test_the_history_says_who_and_why_and_by_which_evidence(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    rollouts.now += 10
    await rollouts.report(made, VersionOutcomes(ok=10, failed=30))
    rollouts.alarms = ("errors: 30 of 40 requests failed",)
    await rollouts.after(made)
    await rollouts.after(made)
    rollouts.alarms = ()
    await act(made, "start")
    await act(made, "promote", why="approved")
    await rollouts.after(made, 301)
    again = await restarted(rollouts, made, "explicit")
    found = await history(again)
    assert await told(again) == [
        ("loaded", 1, "nereid"),
        ("started", 1, "nereid"),
        ("failed", 1, "nereid"),
        ("started", 1, "ann"),
        ("promoted", 2, "ann"),
        ("done", 2, "nereid"),
    ]
    failed, promoted = found.events[2], found.events[4]
    assert failed.why == "errors: 30 of 40 requests failed" and failed.candidate == 2
    assert failed.evidence is not None
    assert (failed.evidence.candidate_requests, failed.evidence.candidate_failed) == (40, 30)
    assert promoted.why == "promoted on request: approved" and found.version == 2


async def test_the_history_says_who_has_loaded_and_unloaded(rollouts: RolloutBench) -> None:
    rollouts.bench.add("m")
    made = await rollouts.manager()
    await made.load(LoadRequest("m", who="ann"))
    await made.unload("m", who="bob")
    await made.load(LoadRequest("m"))
    assert await told(made) == [("loaded", 1, "ann"), ("unloaded", 0, "bob"), ("loaded", 1, "nereid")]


async def test_a_model_without_a_history(rollouts: RolloutBench) -> None:
    made = await rollouts.manager()
    with pytest.raises(InferError, match="model 'm' has served nothing yet") as caught:
        await history(made)
    assert caught.value.code is ErrorCode.NOT_FOUND


async def test_a_start_that_cannot_be_names_the_way(rollouts: RolloutBench) -> None:
    made = await three(rollouts)
    assert "'nereid rollback m --to 1' goes back to it at once" in await refusal(made, "start", candidate=1)
    rollouts.bench.add("m", versions=(4, 5))
    assert "start version 5, or 'nereid rollback m --to 4'" in await refusal(made, "start", candidate=4)
    rollouts.bench.add("m", CONFIG + "version_policy { specific { versions: [3] } }\n")
    text = await refusal(made, "start", candidate=5)
    assert "selects 3 and not 5" in text and "'version_policy' of config.pbtxt" in text


async def test_while_the_stable_version_is_kept_it_serves_at_once(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping(POLICY)
    await act(made, "promote")
    assert state(await status(made)) == (PROMOTED, 100)
    await act(made, "rollback", version=1)
    await rollouts.after(made)
    assert ready(made) == [1] and rollouts.bench.serve.deployed == ["m:1", "m:2"]
