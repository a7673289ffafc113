"""Going back to a version that served before, also beyond the last rollout."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from app.core.errors import InferError, invalid_arg
from app.core.identifiers import name_of
from app.core.rollout.history import RejectedVersion, ServedEvent
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutChange, RolloutEvent, RolloutState, RolloutStatus
from app.core.system.tasks import Tasks
from deployments.rollout.rollouts import Begin, Rollouts
from deployments.rollout.states import machine
from deployments.rollout.states.machine import MAX_HISTORY, MAX_REJECTED_WHY, rejecting
from deployments.rollout.states.record import NEREID, Record
from deployments.rollout.states.selection import Offer, meant, rejected


class Models(Protocol):
    """The life cycle of models, as a rollback needs it."""

    async def load(self, name: str, override: str | None, *, begin: Begin | None = None) -> str:
        """Load a model, after `begin` if that does not raise; return why that failed, "" for a success."""

    async def publish_and_wait(self) -> None:
        """Publish a table; return when every ingress routes by it."""


class Rollbacks:
    """Carries rollbacks out of models without a rollout that is on, and forgets rejected versions.

    Args:
        rollouts: their records and histories.
        models: loads versions.
        tasks: what runs in the background.
    """

    def __init__(self, rollouts: Rollouts, models: Models, tasks: Tasks) -> None:
        self._rollouts = rollouts
        self._models = models
        self._tasks = tasks

    async def go_back(self, name: str, change: RolloutChange, who: str) -> None:
        """Serve what served before, or the version that is named, once it has loaded.

        Raises:
            InferError: INVALID_ARG when there is none, or it cannot be loaded: what serves goes on.
        """
        last = self._rollouts.record(name)
        begun: list[Offer] = []

        async def begin(offer: Offer) -> Offer:
            await self._begin(offer, change, who)
            begun.append(offer)
            return offer

        try:
            failure = await self._models.load(name, None, begin=begin)
        except Exception as error:
            if not begun:
                raise
            failure = error.message if isinstance(error, InferError) else repr(error)
        if failure:
            await self._stay(name, last, failure)
        await self._models.publish_and_wait()
        if failure:
            raise invalid_arg(failure)
        self._tasks.start(self._read_contents(begun[0]))

    async def _begin(self, offer: Offer, change: RolloutChange, who: str) -> None:
        """Have the load that runs serve a version that served before."""
        last, before = self._rollouts.record(offer.name), self._rollouts.ledger.before(offer.name)
        version = await asyncio.to_thread(goal, offer, last, change.version, before)
        now = self._rollouts.now()
        record = await asyncio.to_thread(gone_back, offer, last, version, who, change.why, now)
        left = meant(offer, last) or 0
        await self._rollouts.put(
            record, ServedEvent(now, "rolled back", version, who, record.status.reason, left)
        )

    async def _stay(self, name: str, last: Record | None, why: str) -> None:
        """Take back a rollback whose version could not be loaded; `last` is the record before it."""
        new = self._rollouts.record(name)
        assert new is not None
        status, now, text = new.status, self._rollouts.now(), f"not rolled back: {why}"
        if last is None or last.on:
            new = machine.with_status(new, stable=status.candidate, candidate=status.stable)
            old = machine.forgetting(new, status.candidate)
        else:
            old = last
        kept = machine.moved(old, old.status.state, now, NEREID, text)
        await self._rollouts.put(
            kept, ServedEvent(now, "failed", status.candidate, NEREID, text, status.stable)
        )

    async def _read_contents(self, offer: Offer) -> None:
        """Read what the files of rejected versions say, by which copies are known."""
        record = self._rollouts.record(offer.name)
        if record is None:
            return
        read = await asyncio.to_thread(with_contents, self._rollouts.remembering(offer), record)
        known = {(each.version, each.at): each for each in read.barred}

        def learned(old: Record, now: float) -> Record:
            barred = tuple(known.get((each.version, each.at), each) for each in old.barred)
            return msgspec.structs.replace(old, barred=barred)

        await self._rollouts.change(offer.name, learned)

    async def forget(self, record: Record, change: RolloutChange, who: str) -> None:
        """Let rejected versions be tried again, by the next load or a rollout.

        Raises:
            InferError: INVALID_ARG when there is none.
        """
        name, version = record.name, change.version
        if not any(version in (None, each.version) for each in record.barred):
            shown = ", ".join(str(each.version) for each in record.barred) or "none"
            which = "no version" if version is None else f"not version {version}"
            raise invalid_arg(f"{which} of model '{name_of(name)}' is rejected; rejected: {shown}")
        await self._rollouts.change(name, lambda old, _: machine.forgetting(old, version))
        events = self._rollouts.ledger.events(name)
        what = "no version is rejected" if version is None else f"version {version} is new again"
        served = events[-1].version if events else 0
        now, why = self._rollouts.now(), change.why or what
        await self._rollouts.ledger.note(name, ServedEvent(now, "forgotten", served, who, why, version or 0))


def goal(offer: Offer, last: Record | None, wanted: int | None, before: Sequence[int]) -> int:
    """Return the version to go back to.

    Args:
        offer: the model.
        last: its last rollout.
        wanted: the version that a person names; None for what served before.
        before: the versions that have served, the last one first.

    Raises:
        InferError: INVALID_ARG when there is none, or this one is not there.
    """
    model, current = name_of(offer.name), meant(offer, last)
    there = {*offer.ready, *offer.on_disk}
    if offer.ensemble:
        raise _refused(model, "it is an ensemble without files: roll back the models that it calls")
    if wanted is not None:
        if wanted == current:
            raise _refused(model, f"version {wanted} answers requests without a version already")
        if wanted not in there:
            raise _refused(model, f"version {wanted} is not there, {_listed(offer.on_disk)}")
        return wanted
    left_out = {each.version for each in rejected(offer, there, last)}
    usable = [version for version in there - left_out if version != current]
    if served := [version for version in before if version in usable]:
        return served[0]
    if older := [version for version in usable if current is None or version < current]:
        return max(older)
    raise _refused(
        model, f"no other version has served and is still there, {_listed(offer.on_disk)}; --to names one"
    )


def _refused(model: str, why: str) -> InferError:
    return invalid_arg(f"cannot roll model '{model}' back: {why}")


def _listed(versions: Iterable[int]) -> str:
    shown = ", ".join(map(str, versions))
    return f"its repository has {shown}" if shown else "its repository has none"


def gone_back(offer: Offer, last: Record | None, version: int, who: str, why: str, now: float) -> Record:
    """Return the record of a model that goes back to a version: those that are newer are left out.

    Args:
        offer: the model.
        last: its last rollout, which is over.
        version: the one to serve.
        who: wants it.
        why: the reason.
        now: Unix seconds.
    """
    model, current = name_of(offer.name), meant(offer, last) or version
    newer = [each for each in sorted({*offer.ready, *offer.on_disk}) if each > version]
    reason = f"rolled back to version {version} {f'for: {why}' if why else 'on request'}"
    left_why = (why or f"the model went back to version {version}")[:MAX_REJECTED_WHY]
    event = RolloutEvent(now, RolloutState.ABORTED, 0.0, who, reason)
    spec = last.status.spec if last is not None else RolloutSpec()
    history = (*(last.status.history if last is not None else ()), event)[-MAX_HISTORY:]
    state, identity = RolloutState.ABORTED, secrets.token_hex(4)
    status = RolloutStatus(
        model, identity, version, current, state, reason, 0, 0.0, now, now, spec, history=history
    )
    barred = tuple(each for each in (last.barred if last is not None else ()) if each.version != version)
    record = Record(offer.name, status, _as_it_runs(offer, current), changed=now, barred=barred)
    known = {each.version for each in barred}
    left_out = (each for each in newer if each == current or each not in known)
    return rejecting(
        record,
        *(RejectedVersion(each, _as_it_runs(offer, each), now, who, left_why) for each in left_out),
    )


def _as_it_runs(offer: Offer, version: int) -> str:
    return offer.running.get(version) or offer.fingerprint(version)


def with_contents(offer: Offer, record: Record) -> Record:
    """Return the record with the contents of rejected versions whose files are as they were; reads them."""

    def content(each: RejectedVersion) -> str:
        there = each.version in offer.on_disk and not each.content
        same = there and offer.fingerprint(each.version) == each.fingerprint
        return offer.content(each.version) if same else each.content

    barred = tuple(msgspec.structs.replace(each, content=content(each)) for each in record.barred)
    return msgspec.structs.replace(record, barred=barred)
