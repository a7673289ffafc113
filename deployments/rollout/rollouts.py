"""The rollouts of all models: what a load serves because of them, and how a table splits requests."""

import asyncio
import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

import msgspec

from app.core.cost.reports import VersionSaving
from app.core.errors import invalid_arg
from app.core.identifiers import name_of
from app.core.observability.reporter import ReportNumbers
from app.core.rollout.history import RejectedVersion, ServedEvent, rejection_text
from app.core.rollout.outcomes import OutcomeReport, StepOutcomes
from app.core.rollout.saving import Saving
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.split import Split
from app.core.rollout.status import RolloutState, Verdict
from app.routing.table import ModelState, VersionEntry
from deployments.rollout.judging.savings import known_savings
from deployments.rollout.states import machine, restarts, taping
from deployments.rollout.states.record import NEREID, Record
from deployments.rollout.states.selection import Choice, Offer, alone, answering, choose, differing, meant
from deployments.rollout.states.splits import split_of
from deployments.rollout.storage.ledger import Ledger
from deployments.rollout.storage.records import Records

logger = logging.getLogger(__name__)

Replicas = Callable[[str, tuple[int, int], float], Awaitable[str]]
"""Of a model, its stable version and candidate: has the candidate start replicas for a percentage of the
requests; returns in words which of them do not run yet, "" for none."""

Begin = Callable[[Offer], Awaitable[Offer]]
"""Begins a rollout of a model as a load finds it, or raises why it cannot; returns what to load."""


class Routed(NamedTuple):
    """A rollout as an ingress routes by it, the policy, and the fingerprint of the candidate."""

    split: Split
    spec: RolloutSpec
    fingerprint: str


_CONTENTS: Final = 4096
"""Versions whose content is remembered."""


class Rollouts:
    """Holds the record of each model's rollout, and changes it: each change is stored, then published.

    Args:
        records: the store.
        ledger: what models have served.
        stops: returns whether the server stops.

    Attributes:
        replicas: has candidates start replicas.
    """

    def __init__(self, records: Records, ledger: Ledger, stops: Callable[[], Awaitable[bool]]) -> None:
        self._store = records
        self._stops = stops
        self.ledger = ledger
        self._clock = time.time
        self.replicas: Replicas = _enough_replicas
        self._records: dict[str, Record] = {}
        self._splits: dict[str, Split] = {}
        self._waiting: set[str] = set()
        self._contents: dict[tuple[str, int, str], str] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._reports = ReportNumbers()

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits of the next table: of the rollouts that are on and stored."""
        return tuple(self._splits.values())

    def record(self, name: str) -> Record | None:
        """Return the rollout of a model that is on, or its last one."""
        return self._records.get(name)

    def on(self) -> list[Record]:
        """Return the rollouts that are on, but for those of models that wait for a load since a restart."""
        on = (record for record in self._records.values() if record.on)
        ends = RolloutState.ROLLING_BACK
        return [each for each in on if not self.waits(each.name) or each.status.state is ends]

    def waits(self, name: str) -> bool:
        """Return whether a model's rollout waits since a restart until somebody loads the model."""
        return name in self._waiting

    def done(self) -> list[Record]:
        """Return the rollouts whose candidates are in service."""
        return [r for r in self._records.values() if r.status.state is RolloutState.DONE]

    def is_on(self, name: str) -> bool:
        """Return whether a model has a rollout that is on: none of its versions may go meanwhile."""
        record = self._records.get(name)
        return record is not None and record.on

    def in_service(self) -> list[Record]:
        """Return the rollouts whose candidates answer everything."""
        states = RolloutState.PROMOTED, RolloutState.DONE
        return [record for record in self._records.values() if record.status.state in states]

    async def recover(self, ready: Callable[[str], Collection[int]], routed: Iterable[Routed] = ()) -> None:
        """Go on with the stored rollouts, and with those that only ingresses know of.

        Args:
            ready: returns the versions of a model that Serve runs.
            routed: the rollouts by which an ingress routes.
        """
        await self.ledger.recover()
        stored = await self._store.read()
        for each in routed:
            known = stored.get(each.split.name)
            if known is None or known.status.rollout != each.split.rollout:
                stored[each.split.name] = restarts.found(*each, self._clock())
                logger.warning("%s", stored[each.split.name].status.reason)
        for name, record in stored.items():
            self._records[name] = record
            if record.on:
                found = partial(restarts.recovered, ready(name))
                self._splits[name] = split_of(await self.change(name, found))
                if not ready(name):
                    self._waiting.add(name)

    async def select(self, offer: Offer) -> Choice:
        """Choose the versions of a load; the rollouts that begin or end by it do so now."""
        self._waiting.discard(offer.name)
        offer = self.remembering(offer)
        last = self._records.get(offer.name)
        choice = await asyncio.to_thread(choose, offer, last)
        if not choice.versions:
            raise invalid_arg(_nothing_left(offer, choice))
        stable = meant(offer, last)
        if choice.begins is not None and stable is not None:
            policy = offer.policy or (last.status.spec if last is not None else RolloutSpec())
            await self.begin(offer, (stable, choice.begins), policy, why=f"version {choice.begins} is new")
        elif choice.withdraws:
            await self.change(offer.name, lambda old, now: machine.withdrawn(old, choice.withdraws, now))
        for each in choice.skips:
            text, served = rejection_text(name_of(offer.name), each), ", ".join(map(str, choice.versions))
            logger.warning("model '%s': %s; served is version %s", offer.name, text, served)
        record = self._records.get(offer.name)
        if record is not None and record.alone and record.status.state is RolloutState.LOADING:
            choice = alone(choice, record.status.stable)
        return choice if record is None else choice._replace(percents=_percents(record))

    def listed(self, offer: Offer) -> tuple[int, ...]:
        """Return the versions that a load would serve of a model that is not in memory; reads the disk."""
        choice = choose(self.remembering(offer), self._records.get(offer.name))
        if not choice.versions:
            raise invalid_arg(_nothing_left(offer, choice))
        return tuple(version for version in choice.versions if version != choice.begins)

    def remembering(self, offer: Offer) -> Offer:
        """Return the offer with contents that are read once, as long as the files are the same."""

        def content(version: int) -> str:
            key = offer.name, version, offer.fingerprint(version)
            if key not in self._contents:
                found = offer.content(version)
                while len(self._contents) >= _CONTENTS:
                    del self._contents[next(iter(self._contents))]
                self._contents[key] = found
            return self._contents[key]

        return offer._replace(content=content)

    async def begin(
        self,
        offer: Offer,
        versions: tuple[int, int],
        policy: RolloutSpec,
        who: str = NEREID,
        why: str = "",
        first: float | None = None,
    ) -> None:
        """Begin a rollout, instead of one that may be on; see `machine.begun`."""
        name, candidate = offer.name, versions[1]
        fingerprint = await asyncio.to_thread(offer.fingerprint, candidate)
        content = await asyncio.to_thread(self.remembering(offer).content, candidate)
        identity = machine.Identity(secrets.token_hex(4), fingerprint, secrets.token_hex(8), content)
        last = self._records.get(name)
        record = machine.begun(
            name,
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
        self, name: str, rollout: str, failed: Mapping[int, str], entries: Iterable[VersionEntry]
    ) -> Record | None:
        """Go on after a load of the model; return the rollout whose candidate was to be loaded, if any.

        Args:
            name: the model.
            rollout: what `loading` returned when the load was planned.
            failed: why versions could not be loaded.
            entries: its versions.
        """
        record = self._records.get(name)
        candidate = record.status.candidate if record is not None else 0
        if not rollout or self.loading(name, (candidate,)) != rollout:
            return None
        ready = {each.version: each for each in entries if each.state is ModelState.READY}
        if candidate in ready and candidate not in failed:
            if record is not None and record.reloading and record.status.stable not in ready:
                await self.change(name, taping.loaded)
                return await self.change(name, restarts.stable_gone)
            missing = await self.missing(name, taping.loaded)
            loaded = partial(taping.loaded, missing=missing, differs=differing(ready, record))
            return await self.change(name, loaded)
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
            if machine.NO_ROOM.search(why) and not old.alone:
                return machine.paused(old, f"no room: {why}", now)
            if old.reloading and not tried:
                return machine.paused(old, f"not loaded after a restart: {why}", now)
            return machine.not_loaded(old, why, now, tried or old.alone)

        if await self._stops():  # which ends the load, and says nothing of the version
            return self._records[name]
        return await self.change(name, failed)

    async def served(self, name: str, ready: Collection[int], why: str, who: str) -> None:
        """Note in the history of a model which version answers requests without one, after a load."""
        await self.ledger.load(name, self.answering(name, ready), self._clock(), why, who)

    def answering(self, name: str, ready: Collection[int]) -> int:
        """Return the version of a model that answers requests without one; 0 for none."""
        record = self._records.get(name)
        on = record is not None and record.on and ready
        return answering(record) if record is not None and on else max(ready, default=0)

    async def put(self, record: Record, event: ServedEvent) -> None:
        """Replace the record of a model whose rollout is over; note this in its history."""
        async with self._locks[record.name]:
            await self._keep(record, noted=False)
        await self.ledger.note(record.name, event)

    def now(self) -> float:
        """Return the time, in Unix seconds."""
        return self._clock()

    def rejected(self) -> dict[str, tuple[RejectedVersion, ...]]:
        """Return the versions that get no requests, by model."""
        return {name: record.barred for name, record in self._records.items() if record.barred}

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

    async def _keep(self, record: Record, noted: bool = True) -> None:
        before, status = self._records.get(record.name), record.status
        self._records[record.name] = record
        await self._store.write(record)
        if record.on:
            self._splits[record.name] = split_of(record)
        else:
            self._splits.pop(record.name, None)
        event = status.history[-1]
        if before is None or before.status.history[-1] is not event:
            shown = record.text, event.state.value, status.percent, event.who, event.why
            logger.info("%s: %s at %g %% (%s: %s)", *shown)
            if noted:
                await self.ledger.step(record.name, status)

    async def save(self, name: str) -> None:
        """Store the counters of a rollout."""
        async with self._locks[name]:
            await self._store.write(self._records[name])

    async def save_rollout(self, rollout: str) -> None:
        """Store a rollout by its own name, if it is known."""
        record = self._of(rollout)
        if record is not None:
            await self.save(record.name)

    def _of(self, rollout: str) -> Record | None:
        return next((each for each in self._records.values() if each.status.rollout == rollout), None)

    def judge(self, name: str, verdict: Verdict) -> None:
        """Set the judge's verdict on the present step."""
        self._records[name] = machine.with_status(self._records[name], verdict=verdict)

    def saves(self, name: str, saving: Saving | None) -> None:
        """Set what the candidate saves since it answers everything."""
        self._records[name] = machine.with_status(self._records[name], saving=saving)

    def savings(self) -> tuple[VersionSaving, ...]:
        """Return what is known of what candidates save."""
        return known_savings(self.in_service())

    def end_intervals(self, name: str) -> Record:
        """Compare the versions within the intervals that are over; return the record with the evidence."""
        record = self._records[name]
        intervals = record.intervals.judged(machine.rules(record))
        self._records[name] = msgspec.structs.replace(record, intervals=intervals)
        return self._records[name]

    def count(self, report: OutcomeReport) -> list[tuple[str, str]]:
        """Add a report, once; return the models whose candidates are unavailable, and why."""
        if not self._reports.add(report.ingress, report.number):
            return []
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
        record = self._of(step.rollout)
        if record is not None:
            self._records[record.name] = taping.counted(record, step, self._clock(), source)
        return record


async def _enough_replicas(name: str, versions: tuple[int, int], percent: float) -> str:
    return ""


def _nothing_left(offer: Offer, choice: Choice) -> str:
    why = "; ".join(rejection_text(name_of(offer.name), each) for each in choice.skips)
    return f"load failed for model '{offer.name}': {why or 'no version is left'}"


def _percents(record: Record) -> dict[int, float]:
    """Return the percentage of the model's requests that the candidate gets once loaded."""
    if not record.on:
        return {}
    loading = record.status.state is RolloutState.LOADING
    return {record.status.candidate: machine.first_percent(record) if loading else record.status.percent}
