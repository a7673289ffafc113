"""How long executions of both versions of a rollout take, as their replicas tell it."""

from types import SimpleNamespace
from typing import Any

import msgspec

from app.core.errors import unavailable
from app.core.rollout.outcomes import COMPUTE, Executions, Outcomes, VersionOutcomes
from app.core.rollout.status import RolloutState
from deployments.rollout.executions import ExecutionReader
from deployments.rollout.judging.judge import judge
from deployments.spec import ModelSpec
from tests.unit.deployments.rollout.rollout_bench import STEP, RolloutBench, state


class FakeChannel:
    suspected = ""

    def __init__(self, executions: Executions | Exception) -> None:
        self.executions = executions

    async def control(self, verb: str, payload: object, timeout: float) -> Any:
        assert (verb, payload) == (COMPUTE, None)
        if isinstance(self.executions, Exception):
            raise self.executions
        return msgspec.to_builtins(self.executions)


class FakeRouter:
    """Opens channels to replicas."""

    def __init__(self, **replicas: list[Executions | Exception]) -> None:
        self.channels = {name: list(map(FakeChannel, each)) for name, each in replicas.items()}
        self.opened: list[str] = []
        self.closed: list[str] = []

    def open_control_pool(self, deployment: str, application: str) -> Any:
        self.opened.append(application)
        return SimpleNamespace(channels=self.channels[application])

    def close_control_pool(self, application: str) -> None:
        self.closed.append(application)


def spec(version: int) -> ModelSpec:
    return ModelSpec("m", version, "", b"", f"m{version}", "", b"")


async def test_executions_of_all_replicas_are_added(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    record = made.lifecycle.rollouts.record("m")
    assert record is not None
    router: Any = FakeRouter(m1=[{0: {40: 1}}, {0: {40: 2}, 4: {44: 1}}], m2=[{0: {50: 3}}, unavailable("x")])
    served = {f"m{version}": spec(version) for version in (1, 2)}
    reader = ExecutionReader(lambda: served, lambda: router)
    expected = Outcomes(
        VersionOutcomes(executions={0: {40: 3}, 4: {44: 1}}), VersionOutcomes(executions={0: {50: 3}})
    )
    assert await reader.read(record) == expected
    await reader.read(record)
    assert router.opened == ["m1", "m2"]
    del served["m2"]
    reader.follow({"m"})
    assert router.closed == ["m2"]
    reader.follow(())
    assert router.closed == ["m2", "m1"]


SLOWER = Outcomes(VersionOutcomes(executions={0: {40: 500}}), VersionOutcomes(executions={0: {50: 100}}))


async def test_a_candidate_that_computes_slower_is_rolled_back(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    made._rollouts._judge = judge
    rollouts.executions.found = SLOWER
    assert state(await rollouts.after(made)) == (STEP, 10), "the first seconds are not judged"
    rolled = await rollouts.after(made, 10)
    for _ in range(40):  # an alarm needs 31 intervals
        if rolled.state is not STEP:
            break
        rolled = await rollouts.after(made)
    assert state(rolled) == (RolloutState.ROLLING_BACK, 0)
    assert "(100.00%) of the candidate's executions took longer" in rolled.reason


async def test_replicas_are_not_asked_where_the_rule_is_off(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping("judge: {compute: null}\n")
    rollouts.executions.found = SLOWER
    assert (await rollouts.after(made, 10)).total == Outcomes() and rollouts.executions.read_of == []


async def test_replicas_that_cannot_be_asked_do_not_hold_a_rollout_back(rollouts: RolloutBench) -> None:
    made = await rollouts.stepping()
    rollouts.executions.failure = RuntimeError("no Serve")
    assert state(await rollouts.after(made, 61, ok=100)) == (STEP, 50)
