"""Chooses the versions of a load while a model has a rollout, or has had one that failed. Pure."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutState
from deployments.rollout.machine import Record, judged


class Offer(NamedTuple):
    """A model as a load finds it.

    Attributes:
        name: its identifier.
        versions: what its version policy selects.
        on_disk: versions that have a directory.
        ready: versions that are READY now.
        policy: of its rollouts; None without one.
        fingerprint: returns that of a version; reads the disk.
        ensemble: whether it is one, whose versions differ in nothing.
    """

    name: str
    versions: tuple[int, ...]
    on_disk: tuple[int, ...]
    ready: tuple[int, ...]
    policy: RolloutSpec | None
    fingerprint: Callable[[int], str]
    ensemble: bool = False


class Choice(NamedTuple):
    """What is to be loaded.

    Attributes:
        versions: what is to be served.
        stable: the version that stays as it runs, whatever has become of its files; None for none.
        begins: the candidate of a rollout that begins.
        withdraws: why the rollout that is on ends; "" if it does not.
        skips: whether a candidate that has failed is left out.
        stops: a version to unload before anything is loaded; None for none.
        percents: of the requests that a version is to get when it has loaded; others get all of them.
    """

    versions: tuple[int, ...]
    stable: int | None = None
    begins: int | None = None
    withdraws: str = ""
    skips: bool = False
    stops: int | None = None
    percents: Mapping[int, float] = {}


def choose(offer: Offer, last: Record | None) -> Choice:
    """Choose the versions to serve.

    Args:
        offer: the model.
        last: its rollout that is on, or its last one.
    """
    tried = dict(last.barred) if last is not None else {}
    untried = (v for v in offer.versions if v not in tried or offer.fingerprint(v) != tried[v])
    remaining = offer._replace(versions=tuple(untried))
    if last is not None and last.on:
        return _while_on(remaining, last)
    kept = Choice(offer.versions)
    if last is not None and remaining.versions != offer.versions:
        kept = _beside(remaining, _answering(last))._replace(skips=True)
        if not kept.versions:
            return Choice(offer.versions)  # rather than to serve nothing
    current, newest = meant(offer, last), max(kept.versions)
    if offer.policy is None or current is None or newest <= current:
        return kept
    return _beside(remaining, current, begins=newest)


def meant(offer: Offer, last: Record | None) -> int | None:
    """Return the version that requests without a version mean now; None without a READY one."""
    return _answering(last) if last is not None and last.on else max(offer.ready, default=None)


def _answering(record: Record) -> int:
    """Return the version that requests without a version mean because of a rollout."""
    status = record.status
    taken_over = status.state in (RolloutState.PROMOTED, RolloutState.DONE)
    return status.candidate if taken_over else status.stable


def _while_on(offer: Offer, record: Record) -> Choice:
    status = record.status
    newest = max(offer.versions, default=0)
    if newest == status.candidate:
        # The files of a promoted version are its own matter again: it is reloaded at once.
        if status.state is RolloutState.PROMOTED or offer.fingerprint(newest) == record.fingerprint:
            there = status.state is RolloutState.LOADING or judged(record)
            return _beside(offer, status.stable, without=None if there else newest)
        return _beside(offer, status.stable, begins=newest)
    current = meant(offer, record)
    if current in {*offer.ready, *offer.on_disk} and newest > current:
        return _beside(offer, current, begins=newest)
    why = f"version {status.candidate} is no longer to be served"
    return _beside(offer, status.stable)._replace(withdraws=why)


def alone(choice: Choice, stable: int) -> Choice:
    """Return the choice without the stable version: there is no room for both."""
    others = tuple(version for version in choice.versions if version != stable)
    return choice._replace(versions=others, stable=None, stops=choice.stable)


def _beside(offer: Offer, stable: int, without: int | None = None, begins: int | None = None) -> Choice:
    """Choose the offered versions, and the stable one as it runs, or else from the disk."""
    versions = set(offer.versions) - {without}
    there = stable in offer.ready
    if there or stable in offer.on_disk:
        versions.add(stable)
    return Choice(tuple(sorted(versions)), stable if there else None, begins)
