"""The rollouts of all models: what a load serves because of them, and how a table splits requests."""

import asyncio
import logging
import re
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from app.core.identifiers import name_of
from app.core.rollout.outcomes import OutcomeReport, StepOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.split import WHOLE, Split
from app.core.rollout.status import RolloutState, Verdict
from deployments.rollout import machine
from deployments.rollout.machine import NEREID, Record
from deployments.rollout.records import Records
from deployments.rollout.selection import Choice, Offer, alone, choose, meant

logger = logging.getLogger(__name__)

_NO_ROOM: Final = re.compile(
    r"out of memory|MemoryError|cannot allocate memory|not enough (free )?memory|no room", re.IGNORECASE
)
Replicas = Callable[[str, tuple[int, int], float], Awaitable[str]]
"""Of a model, its stable version and candidate: has the candidate start replicas for a percentage of the
requests; returns in words which of them do not run yet, "" for none."""

Begin = Callable[[Offer], Awaitable[None]]
"""Begins a rollout of a model as a load finds it, or raises why it cannot."""


class Routed(NamedTuple):
    """A rollout as an ingress routes by it, the policy, and the fingerprint of the candidate."""

    split: Split
    spec: RolloutSpec
    fingerprint: str


_INGRESSES: Final = 4096
"""Ingresses whose last report is remembered."""


class Rollouts:
    """Holds the record of each model's rollout, and changes it: each change is stored, then published.

    Args:
        records: the store.
        clock: returns Unix seconds, which outlive this process.

    Attributes:
        replicas: has candidates start replicas.
    """

    def __init__(self, records: Records, clock: Callable[[], float] = time.time) -> None:
        self._store = records
        self._clock = clock
        self.replicas: Replicas = _enough_replicas
        self._records: dict[str, Record] = {}
        self._splits: dict[str, Split] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reports: dict[str, int] = {}

    @property
    def splits(self) -> tuple[Split, ...]:
        """How tables split requests: of the rollouts that are on and stored."""
        return tuple(self._splits.values())

    def record(self, name: str) -> Record | None:
        """Return the rollout of a model that is on, or its last one."""
        return self._records.get(name)

    def on(self) -> list[Record]:
        """Return the rollouts that are on."""
        return [record for record in self._records.values() if record.on]

    def done(self) -> list[Record]:
        """Return the rollouts whose candidates are in service."""
        return [r for r in self._records.values() if r.status.state is RolloutState.DONE]

    def is_on(self, name: str) -> bool:
        """Return whether a model has a rollout that is on: none of its versions may go meanwhile."""
        record = self._records.get(name)
        return record is not None and record.on

    async def recover(self, ready: Callable[[str], Collection[int]], routed: Iterable[Routed] = ()) -> None:
        """Go on with the stored rollouts, and with those that only ingresses know of.

        Args:
            ready: returns the versions of a model that Serve runs.
            routed: the rollouts by which an ingress routes.
        """
        stored = await self._store.read()
        for each in routed:
            known = stored.get(each.split.name)
            if known is None or known.status.rollout != each.split.rollout:
                stored[each.split.name] = machine.found(*each, self._clock())
                logger.warning("%s", stored[each.split.name].status.reason)
        for name, record in stored.items():
            self._records[name] = record
            if record.on:
                found = partial(_recovered, ready(name))
                self._splits[name] = split_of(await self.change(name, found))

    async def select(self, offer: Offer) -> Choice:
        """Choose the versions of a load; the rollouts that begin or end by it do so now."""
        last = self._records.get(offer.name)
        choice = await asyncio.to_thread(choose, offer, last)
        stable = meant(offer, last)
        if choice.begins is not None and stable is not None:
            policy = offer.policy or (last.status.spec if last is not None else RolloutSpec())
            fingerprint = await asyncio.to_thread(offer.fingerprint, choice.begins)
            why = f"version {choice.begins} is new"
            await self.begin(offer.name, (stable, choice.begins), policy, fingerprint, why=why)
        elif choice.withdraws:
            await self.change(offer.name, lambda old, now: machine.withdrawn(old, choice.withdraws, now))
        elif choice.skips and last is not None:
            text = "the %s is over (%s: %s): only the action 'start' loads a candidate again that has failed"
            logger.warning(text, last.text, last.status.state.value, last.status.reason)
        record = self._records.get(offer.name)
        if record is not None and record.alone and record.status.state is RolloutState.LOADING:
            choice = alone(choice, record.status.stable)
        return choice if record is None else choice._replace(percents=_percents(record))

    async def begin(
        self,
        name: str,
        versions: tuple[int, int],
        policy: RolloutSpec,
        fingerprint: str,
        who: str = NEREID,
        why: str = "",
        first: float | None = None,
    ) -> None:
        """Begin a rollout, instead of one that may be on; see `machine.begun`."""
        identity = (secrets.token_hex(4), fingerprint, secrets.token_hex(8))
        last = self._records.get(name)
        record = machine.begun(
            name,
            name_of(name),
            versions,
            policy,
            now=self._clock(),
            identity=identity,
            who=who,
            why=why,
            first=first,
            barred=last.barred if last is not None else (),
        )
        async with self._locks[name]:
            await self._keep(record)

    def loading(self, name: str, versions: Collection[int]) -> str:
        """Return the rollout that waits for a load of these versions; "" for none."""
        record = self._records.get(name)
        waits = record is not None and record.status.state is RolloutState.LOADING
        return record.status.rollout if record and waits and record.status.candidate in versions else ""

    async def settle(
        self, name: str, rollout: str, failed: Mapping[int, str], ready: Collection[int]
    ) -> Record | None:
        """Go on after a load of the model.

        Args:
            name: the model.
            rollout: what `loading` returned when the load was planned.
            failed: why versions could not be loaded.
            ready: its READY versions.

        Returns:
            The rollout whose candidate was to be loaded; None for none.
        """
        record = self._records.get(name)
        candidate = record.status.candidate if record is not None else 0
        if not rollout or self.loading(name, (candidate,)) != rollout:
            return None
        if candidate in ready and candidate not in failed:
            missing = await self.missing(name, machine.loaded)
            return await self.change(name, partial(machine.loaded, missing=missing))
        why = failed.get(candidate) or "; ".join(failed.values()) or "the candidate was not loaded"
        return await self.fail(name, rollout, why, tried=candidate in failed)

    async def fail(self, name: str, rollout: str, why: str, tried: bool) -> Record:
        """End a rollout that waits for its load; without room for it, pause.

        Args:
            name: the model.
            rollout: which one.
            why: the load failed.
            tried: the candidate itself could not be loaded, and is not to be tried again.
        """

        def failed(old: Record, now: float) -> Record:
            if self.loading(name, (old.status.candidate,)) != rollout:
                return old
            if _NO_ROOM.search(why) and not old.alone:
                return machine.paused(old, f"no room: {why}", now)
            return machine.not_loaded(old, why, now, tried or old.alone)

        return await self.change(name, failed)

    async def unloaded(self, name: str) -> None:
        """End the rollout of a model that is unloaded."""
        if self.is_on(name):
            await self.change(name, lambda old, now: machine.withdrawn(old, "the model was unloaded", now))

    async def missing(self, name: str, step: Callable[[Record, float], Record]) -> str:
        """Return which replicas of the candidate a change has to wait for; "" for none. They are started."""
        old = self._records[name]
        status, wanted = old.status, step(old, self._clock()).status.percent
        if wanted <= status.percent:
            return ""
        return await self.replicas(name, (status.stable, status.candidate), wanted)

    async def change(self, name: str, step: Callable[[Record, float], Record]) -> Record:
        """Change a record: from the present one and the time to the next, which is stored; return it."""
        async with self._locks[name]:
            old = self._records[name]
            new = step(old, self._clock())
            if new is not old:
                await self._keep(new)
            return self._records[name]

    async def _keep(self, record: Record) -> None:
        before, status = self._records.get(record.name), record.status
        self._records[record.name] = record
        await self._store.write(record)
        if record.on:
            self._splits[record.name] = split_of(record)
        else:
            self._splits.pop(record.name, None)
        event = status.history[-1]
        if before is None or before.status.history[-1] is not event:
            logger.info(
                "%s: %s at %g %% (%s: %s)",
                record.text,
                event.state.value,
                status.percent,
                event.who,
                event.why,
            )

    async def save(self, name: str) -> None:
        """Store the counters of a rollout."""
        async with self._locks[name]:
            await self._store.write(self._records[name])

    def judge(self, name: str, verdict: Verdict) -> None:
        """Set the judge's verdict on the present step."""
        self._records[name] = machine.with_status(self._records[name], verdict=verdict)

    def end_intervals(self, name: str) -> Record:
        """Compare the versions within the intervals that are over; return the record with the evidence."""
        record = self._records[name]
        intervals = record.intervals.judged(machine.rules(record))
        self._records[name] = msgspec.structs.replace(record, intervals=intervals)
        return self._records[name]

    def count(self, report: OutcomeReport) -> list[tuple[str, str]]:
        """Add a report, once; return the models whose candidates are unavailable, and why."""
        if report.number <= self._reports.get(report.ingress, 0):
            return []
        self._reports.pop(report.ingress, None)  # the order of the dictionary is that of the reports
        self._reports[report.ingress] = report.number
        if len(self._reports) > _INGRESSES:
            del self._reports[next(iter(self._reports))]
        lost = []
        for step in report.steps:
            record = self.add(step, report.ingress)
            if record is not None and step.absent:
                self._records[record.name] = machine.absent(record, self._clock())
            if record is not None and step.unavailable and step.step == record.status.step:
                lost.append((record.name, step.unavailable))
        return lost

    def add(self, step: StepOutcomes, source: str = "") -> Record | None:
        """Add outcomes that an ingress counted (`source`), or that were read; return the record, if any."""
        found = (record for record in self._records.values() if record.status.rollout == step.rollout)
        record = next(found, None)
        if record is not None:
            counted = machine.counted(record, step.step, step.outcomes, self._clock(), source)
            self._records[record.name] = counted
        return record


async def _enough_replicas(name: str, versions: tuple[int, int], percent: float) -> str:
    return ""


def _percents(record: Record) -> dict[int, float]:
    """Return the percentage of the model's requests that the candidate gets once loaded."""
    if not record.on:
        return {}
    loading = record.status.state is RolloutState.LOADING
    return {record.status.candidate: machine.first_percent(record) if loading else record.status.percent}


def split_of(record: Record) -> Split:
    """Return how tables split the requests of a rollout that is on."""
    status, spec = record.status, record.status.spec
    given = machine.judged(record)
    mirrored = given and status.state is not RolloutState.PROMOTED
    return Split(
        status.rollout,
        record.name,
        status.stable,
        status.candidate,
        step=status.step,
        weight=machine.weight(record),
        mirror=round(spec.mirror * WHOLE / 100) if mirrored else 0,
        sticky=spec.sticky,
        salt=record.salt,
        match=spec.match if given else (),
        stable_on_error=spec.on_error == "stable",
        state=status.state.value,
        max_difference=spec.judge.output.max_difference or 0.0,
        held_back=machine.promoted(record),
    )


def _recovered(ready: Collection[int], record: Record, now: float) -> Record:
    """Return how a stored rollout goes on with the versions that Serve runs."""
    status = record.status
    stable, candidate = status.stable in ready, status.candidate in ready
    if status.state is RolloutState.LOADING:
        return machine.loaded(record, now) if candidate and (stable or record.alone) else record
    if not machine.judged(record) or (stable and candidate):
        return record
    if not stable and not candidate:  # the whole cluster has been away
        return machine.reloaded(record, now)
    if candidate:
        return machine.paused(record, f"stable version {status.stable} is gone", now)
    return machine.rolling_back(record, f"version {status.candidate} was gone after a restart", now)
