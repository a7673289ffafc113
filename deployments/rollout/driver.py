"""Carries rollouts out: what follows from time, counters and people, in tables, loads and deletions."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Final, Protocol

import msgspec

from app.core.cost.minutes import Minutes
from app.core.errors import InferError, invalid_arg, not_found, unavailable
from app.core.identifiers import name_of
from app.core.rollout.history import RolloutHistory
from app.core.rollout.outcomes import OutcomeReport, Outcomes, StepOutcomes
from app.core.rollout.spec import JudgeRules, RolloutSpec
from app.core.rollout.status import RolloutChange, RolloutState, RolloutStatus, Verdict
from app.core.system.tasks import Tasks
from deployments.rollout.judging.intervals import Intervals
from deployments.rollout.judging.savings import Savings
from deployments.rollout.rollback import Rollbacks
from deployments.rollout.rollouts import Begin, Replicas, Rollouts
from deployments.rollout.scores import ScoreBoard
from deployments.rollout.states import machine, taping
from deployments.rollout.states.changes import changed, check_start, started_from
from deployments.rollout.states.record import Record
from deployments.rollout.states.selection import Offer, meant

logger = logging.getLogger(__name__)

Judge = Callable[[JudgeRules, Outcomes, Intervals], Verdict]
Step = Callable[[Record, float], Record]


tick_pause = replicas_pause = asyncio.sleep
_TICK_S: Final = 1.0
_REPLICAS_S: Final = 300
"""Seconds that a person's change waits for replicas of the candidate."""
_SAVE_TICKS: Final = 10
"""Counters are stored so often; changes of a rollout at once."""


class Models(Protocol):
    """The life cycle of models, as a rollout needs it."""

    async def load(self, name: str, override: str | None, *, begin: Begin | None = None) -> str:
        """Load a model, after `begin` if that does not raise; return why that failed, "" for a success."""

    def load_quietly(self, name: str, *, begin: Begin | None = None) -> Coroutine[None, None, None]:
        """Load a model as `load`; a failure is logged."""

    async def retire(self, name: str, version: int) -> None:
        """Take a version out of service; its application ends after its requests."""

    def busy(self, name: str) -> bool:
        """Return whether a model is being loaded or unloaded."""

    def ready(self, name: str) -> list[int]:
        """Return the READY versions of a model."""

    async def publish_and_wait(self) -> None:
        """Publish a table; return when every ingress routes by it."""


class Executions(Protocol):
    """Reads the replicas of rollouts."""

    async def read(self, record: Record) -> Outcomes:
        """Return the executions of both versions since the last time."""

    def follow(self, names: Collection[str]) -> None:
        """Forget the replicas of models other than these."""


class RolloutDriver:
    """Moves rollouts on once a second, and as people ask.

    Args:
        rollouts: their records.
        models: loads and deletes versions.
        judge: says from the rules and the counters of a step what is wrong with a candidate.
        tasks: what runs in the background.
        replicas: has candidates start replicas.
        executions: reads how long executions of both versions take.
        minutes: what each version consumes.

    Attributes:
        scores: what clients have said of answers later.
    """

    def __init__(
        self,
        rollouts: Rollouts,
        models: Models,
        judge: Judge,
        tasks: Tasks,
        replicas: Replicas,
        executions: Executions,
        minutes: Minutes,
    ) -> None:
        self._executions = executions
        self._savings = Savings(minutes, rollouts, tasks)
        self.scores = ScoreBoard()
        self._rollouts = rollouts
        rollouts.replicas = replicas
        self._models = models
        self._judge = judge
        self._tasks = tasks
        self._rollbacks = Rollbacks(rollouts, models, tasks)
        self._busy: set[str] = set()
        self._moving: dict[str, Record] = {}  # as they were, until every ingress routes by the change
        self._ticks = 0

    async def run(self, is_stopping: Callable[[], bool]) -> None:
        """Move rollouts on until the manager stops."""
        for record in self._rollouts.done():  # the manager before may not have got that far
            if record.status.stable in self._models.ready(record.name):
                self._tasks.start(self._models.load_quietly(record.name, begin=self._as_it_is))
        while not is_stopping():
            self.tick()
            await tick_pause(_TICK_S)

    def tick(self) -> None:
        """Move every rollout on by one step, each in a task of its own: a load may take long."""
        self._ticks += 1
        on = self._rollouts.on()
        self._executions.follow({record.name for record in on})
        self.scores.follow({record.name for record in on})
        self._savings.tick()
        for record in on:
            if record.name not in self._busy:
                self._busy.add(record.name)
                self._tasks.start(self._advance_logged(record.name))

    async def _advance_logged(self, name: str) -> None:
        try:
            await self._advance(name)
            if self._ticks % _SAVE_TICKS == 0:
                await self._rollouts.save(name)
        except Exception:
            logger.exception("moving the rollout of '%s' on", name)
        finally:
            self._busy.discard(name)

    async def _advance(self, name: str) -> None:
        record = self._require(name)
        if record.status.state is RolloutState.LOADING:
            if not self._models.busy(name):
                await self._load(record)
        elif record.status.state is RolloutState.ROLLING_BACK:
            await self._roll_back(record)
        else:
            await self._step(record)

    async def _load(self, record: Record) -> None:
        """Load the candidate."""
        try:
            await self._models.load(record.name, None)
        except Exception as error:
            await self._fail(record, error)
        await self._models.publish_and_wait()

    async def _fail(self, record: Record, error: Exception) -> str:
        """End a rollout whose load has failed before it came to the candidate; return why."""
        why = error.message if isinstance(error, InferError) else repr(error)
        await self._rollouts.fail(record.name, record.status.rollout, why, tried=False)
        return why

    async def _roll_back(self, record: Record) -> None:
        await self._models.retire(record.name, record.status.candidate)
        await self._move(record.name, _same(record, machine.rolled_back))
        waits = self._rollouts.waits(record.name)
        if not waits and record.status.stable not in self._models.ready(record.name):
            await self._models.load_quietly(record.name)

    async def _step(self, record: Record) -> None:
        status = record.status
        if status.spec.judge.compute and machine.judged(record):
            await self._read_executions(record)
        record = self._rollouts.end_intervals(record.name)
        verdict = self._judge(machine.rules(record), record.status.outcomes, record.intervals)
        verdict = self.scores.judged(record, verdict)
        if record.status.state is RolloutState.TAPE:
            verdict = msgspec.structs.replace(verdict, waiting=taping.waiting(record))
        self._rollouts.judge(record.name, verdict)
        missing = await self._rollouts.missing(record.name, taping.ticked)
        if missing:
            self._rollouts.judge(record.name, msgspec.structs.replace(verdict, waiting=missing))
        after = await self._move(record.name, partial(machine.held, missing) if missing else taping.ticked)
        if after.status.state is RolloutState.DONE:
            # Retires what the version policy does not select.
            await self._models.load_quietly(record.name, begin=self._as_it_is)

    async def _move(self, name: str, step: Step) -> Record:
        """Change a rollout; return its record when every ingress routes by it, until when no end is shown."""
        before = self._require(name)
        is_first = name not in self._moving
        self._moving.setdefault(name, before)
        try:
            after = await self._rollouts.change(name, step)
            if after.status.history[-1] is not before.status.history[-1]:
                await self._models.publish_and_wait()
            return after
        finally:
            if is_first:
                del self._moving[name]

    async def _as_it_is(self, offer: Offer) -> Offer:
        """Leave out newer versions of a load that nobody has requested: they would serve unjudged.

        A rollout that somebody has started before that load goes on.
        """
        record = self._rollouts.record(offer.name)
        candidate = record.status.candidate if record is not None and record.on else 0
        return offer.without_newer(max(candidate, self._rollouts.answering(offer.name, offer.ready)))

    async def _read_executions(self, record: Record) -> None:
        try:
            read = await self._executions.read(record)
        except Exception:  # the other rules go on
            logger.exception("reading how long executions of '%s' take", record.name)
        else:
            self._rollouts.add(StepOutcomes(record.status.rollout, record.status.step, read))

    def status(self, name: str) -> RolloutStatus:
        """Return the rollout of a model that is on, or its last one; its end once every ingress routes by it.

        Raises:
            InferError: NOT_FOUND when it never had one.
        """
        record = self._require(name)
        if not record.on:
            record = self._moving.get(name, record)
        return msgspec.structs.replace(record.status, rejected=record.barred)

    def history(self, name: str) -> RolloutHistory:
        """Return what a model has served.

        Raises:
            InferError: NOT_FOUND when it never served.
        """
        events, record = self._rollouts.ledger.events(name), self._rollouts.record(name)
        if not events and record is None:
            raise not_found(f"model '{name_of(name)}' has served nothing yet, so there is no history of it")
        version = self._rollouts.answering(name, self._models.ready(name))
        if record is None:
            return RolloutHistory(name_of(name), version, events)
        return RolloutHistory(name_of(name), version, events, record.barred, record.status.saving)

    def _require(self, name: str) -> Record:
        record = self._rollouts.record(name)
        if record is None:
            raise not_found(
                f"model '{name_of(name)}' has had no rollout; one begins by the action 'start', or with a "
                "new version if the model's directory has a rollout.yaml"
            )
        return record

    async def change(self, name: str, change: RolloutChange, who: str) -> RolloutStatus:
        """Change or start a rollout; return when every ingress routes by the change.

        Raises:
            InferError: INVALID_ARG when it cannot be done; NOT_FOUND when there is nothing to change.
        """
        if change.action == "start":
            await self._start(name, change, who)
        elif change.action == "rollback":
            await self._go_back(name, change, who)
        elif change.action == "forget":
            await self._rollbacks.forget(self._require(name), change, who)
        else:
            self._require(name)
            await self._change(name, lambda old, now: changed(old, change, who, now))
            await self._models.publish_and_wait()
        return self.status(name)

    async def _change(self, name: str, step: Step) -> None:
        """Change a rollout once the candidate has the replicas for it.

        Raises:
            InferError: UNAVAILABLE when it does not get them; INVALID_ARG when the change makes no sense.
        """
        for _ in range(_REPLICAS_S):
            missing = await self._rollouts.missing(name, step)
            if not missing:
                await self._rollouts.change(name, step)
                return
            await replicas_pause(_TICK_S)
        text = f"the rollout of model '{name_of(name)}' goes on as before: after {_REPLICAS_S} s {missing}"
        raise unavailable(text)

    async def _start(self, name: str, change: RolloutChange, who: str) -> None:
        begun: list[Record] = []

        async def begin(offer: Offer) -> Offer:
            begun.append(await self._begin(offer, change, who))
            return offer

        try:
            failure = await self._models.load(name, None, begin=begin)
        except Exception as error:
            if not begun:
                raise
            failure = await self._fail(begun[0], error)
        await self._models.publish_and_wait()
        if failure:
            raise invalid_arg(failure)

    async def _go_back(self, name: str, change: RolloutChange, who: str) -> None:
        """Serve what served before; a rollout that is on is aborted first."""
        record = self._rollouts.record(name)
        if record is not None and record.on:
            if record.status.state is not RolloutState.ROLLING_BACK:
                await self._rollouts.change(name, lambda old, now: changed(old, change, who, now))
                await self._models.publish_and_wait()
            if change.version in (None, record.status.stable):
                return
            await self._roll_back(self._require(name))
        await self._rollbacks.go_back(name, change, who)

    async def _begin(self, offer: Offer, change: RolloutChange, who: str) -> Record:
        name, last = offer.name, self._rollouts.record(offer.name)
        stable, candidate = meant(offer, last), max(offer.versions)
        policy = started_from(offer.policy or RolloutSpec(), change)
        check_start(offer, last, stable, change.candidate)
        assert stable is not None
        versions = stable, candidate
        await self._rollouts.begin(offer, versions, policy, who, "started on request", change.weight)
        return self._require(name)

    async def report(self, report: OutcomeReport) -> None:
        """Add what an ingress counted; a candidate that it finds unavailable is rolled back at once."""
        for name, why in self._rollouts.count(report):
            await self._move(name, partial(machine.unavailable, why))
        for rollout in {step.rollout for step in report.steps if step.part is not None}:
            await self._rollouts.save_rollout(rollout)  # what was reported is not repeated


def _same(record: Record, step: Callable[[Record, float], Record]) -> Callable[[Record, float], Record]:
    """Return a change that does nothing to another rollout, which may have begun meanwhile."""
    rollout = record.status.rollout
    return lambda old, now: step(old, now) if old.status.rollout == rollout else old
