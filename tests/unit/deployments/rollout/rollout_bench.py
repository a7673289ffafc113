"""A repository manager whose rollouts go on when a test says so."""

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from app.core.errors import InferError
from app.core.rollout.outcomes import OutcomeReport, Outcomes, StepOutcomes, VersionOutcomes
from app.core.rollout.spec import JudgeRules
from app.core.rollout.split import Split
from app.core.rollout.status import RolloutChange, RolloutState, RolloutStatus, Verdict
from app.routing.manager_client import LoadRequest
from deployments.manager.manager import RepositoryManager
from deployments.rollout import driver
from deployments.rollout.judging.intervals import Intervals
from deployments.rollout.states.record import Record
from tests.unit.deployments.manager.manager_bench import Bench
from tests.unit.deployments.model_directories import CONFIG
from tests.waiting import until

POLICY = "steps: [10, 50]\nstep: {min_seconds: 60, min_requests: 100}\nkeep_stable_seconds: 300\n"
STEP, PROMOTED, DONE = RolloutState.STEP, RolloutState.PROMOTED, RolloutState.DONE
FAILED, PAUSED, ABORTED = RolloutState.FAILED, RolloutState.PAUSED, RolloutState.ABORTED


class FakeExecutions:
    """Reads the same executions each time."""

    def __init__(self) -> None:
        self.found = Outcomes()
        self.failure: Exception | None = None
        self.read_of: list[str] = []

    async def read(self, record: Record) -> Outcomes:
        self.read_of.append(record.name)
        if self.failure is not None:
            raise self.failure
        return self.found

    def follow(self, names: Collection[str]) -> None:
        pass


class RolloutBench:
    """Managers whose rollouts' clock stands still."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench = bench
        self.now = 1_000_000.0
        self.alarms: tuple[str, ...] = ()
        self.reports = 0
        self.executions = FakeExecutions()
        monkeypatch.setattr(driver, "tick_pause", self._pause)

    async def _pause(self, seconds: float) -> None:
        await asyncio.Event().wait()

    def judge(self, rules: JudgeRules, outcomes: Outcomes, intervals: Intervals) -> Verdict:
        return Verdict(self.alarms)

    async def manager(self, **settings: Any) -> RepositoryManager:
        """Start a manager, or a second one after the first, of mode EXPLICIT if no other is given."""
        made = self.bench.begin(**{"model_control_mode": "explicit", **settings})
        return await self.started(made)

    async def started(self, made: RepositoryManager) -> RepositoryManager:
        """Return a manager that has begun, when it has started."""
        made.lifecycle.rollouts._clock = lambda: self.now
        made._rollouts._judge = self.judge
        made._rollouts._executions = self.executions
        await made.check_health()
        assert made._start is not None
        await asyncio.wait_for(asyncio.shield(made._start), 60)
        await made.check_health()
        return made

    async def serving(self, policy: str | None = POLICY, config: str = CONFIG) -> RepositoryManager:
        """Start a manager that serves version 1 of `m`; version 2 lies in the repository."""
        directory = self.bench.add("m", config)
        if policy is not None:
            (directory / "rollout.yaml").write_text(policy)
        made = await self.manager(load_model=["m"])
        self.bench.add("m", config, (2,))
        return made

    async def stepping(self, policy: str = POLICY) -> RepositoryManager:
        """Start a manager whose model `m` is in the first step from version 1 to 2."""
        made = await self.serving(policy)
        await made.load(LoadRequest("m"))
        return made

    async def after(self, made: RepositoryManager, seconds: float = 1.0, ok: int = 0) -> RolloutStatus:
        """Let time pass and the candidate answer requests; return the status after that."""
        if ok:
            self.now += 10  # the first seconds are not judged
            await self.report(made, VersionOutcomes(ok=ok))
        self.now += seconds
        made._rollouts.tick()
        await until(lambda: not made._rollouts._busy)
        return await status(made)

    async def report(
        self,
        made: RepositoryManager,
        candidate: VersionOutcomes,
        unavailable: str = "",
        number: int = 0,
        absent: bool = False,
    ) -> None:
        """Report outcomes as an ingress does."""
        self.reports += 1
        now = await status(made)
        step = StepOutcomes(now.rollout, now.step, Outcomes(candidate=candidate), unavailable, absent)
        report = OutcomeReport("ingress", number or self.reports, [step])
        await made.report_outcomes(msgspec.msgpack.encode(report))


async def status(made: RepositoryManager) -> RolloutStatus:
    return msgspec.msgpack.decode(await made.rollout("m"), type=RolloutStatus)


async def act(made: RepositoryManager, action: str, **fields: Any) -> RolloutStatus:
    """Change the rollout of `m` as a client does."""
    change = msgspec.msgpack.encode({"action": action, **fields})
    msgspec.msgpack.decode(change, type=RolloutChange)
    answer = await asyncio.wait_for(made.change_rollout("m", change, "ann"), 60)
    return msgspec.msgpack.decode(answer, type=RolloutStatus)


async def refusal(made: RepositoryManager, action: str, **fields: Any) -> str:
    with pytest.raises(InferError) as caught:
        await act(made, action, **fields)
    return caught.value.message


def ready(made: RepositoryManager) -> list[int]:
    return made.table.ready_versions("m")


def split(made: RepositoryManager) -> Split | None:
    """Return the split of `m` in the current table."""
    return made.table.split_by_name.get("m")


def state(of: RolloutStatus) -> tuple[RolloutState, float]:
    return of.state, of.percent
