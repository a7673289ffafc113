"""Chooses the versions of a load while a model has a rollout, or has had one that failed. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from app.core.config.differences import differences
from app.core.rollout.history import RejectedVersion
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutState
from app.routing.table import VersionEntry
from deployments.rollout.states.machine import judged, promoted
from deployments.rollout.states.record import Record


class Offer(NamedTuple):
    """A model as a load finds it.

    Attributes:
        name: its identifier.
        versions: what its version policy selects.
        on_disk: versions that have a directory.
        ready: versions that are READY now.
        policy: of its rollouts; None without one.
        fingerprint: returns that of a version; reads the disk.
        content: returns a digest of what the files of a version say, "" if that is not known; reads them.
        running: the fingerprints of versions that are READY, as they were loaded.
        ensemble: whether it is one, whose versions differ in nothing.
    """

    name: str
    versions: tuple[int, ...]
    on_disk: tuple[int, ...]
    ready: tuple[int, ...]
    policy: RolloutSpec | None
    fingerprint: Callable[[int], str]
    content: Callable[[int], str] = lambda version: ""
    running: Mapping[int, str] = {}
    ensemble: bool = False

    def without_newer(self, version: int) -> "Offer":
        """Return it without the versions that are newer than one that serves; the same if none does."""
        if not version:
            return self
        versions = tuple(each for each in self.versions if each <= version)
        return self._replace(versions=versions or (version,))

    def is_known(self, fingerprint: str, content: str, version: int) -> bool:
        """Return whether a version has the files that it had, perhaps copied anew."""
        return self.fingerprint(version) == fingerprint or bool(content and self.content(version) == content)


class Choice(NamedTuple):
    """The versions to be loaded.

    Attributes:
        versions: what is to be served.
        stable: the version that stays as it runs, whatever has become of its files; None for none.
        begins: the candidate of a rollout that begins.
        withdraws: why the rollout that is on ends; "" if it does not.
        skips: versions that are left out because they were rejected.
        stops: a version to unload before anything is loaded; None for none.
        percents: of the requests that a version is to get when it has loaded; others get all of them.
    """

    versions: tuple[int, ...]
    stable: int | None = None
    begins: int | None = None
    withdraws: str = ""
    skips: tuple[RejectedVersion, ...] = ()
    stops: int | None = None
    percents: Mapping[int, float] = {}


def choose(offer: Offer, last: Record | None) -> Choice:
    """Choose the versions to serve.

    Args:
        offer: the model.
        last: its rollout that is on, or its last one.
    """
    skips = rejected(offer, offer.versions, last)
    skipped = {each.version for each in skips}
    remaining = offer._replace(versions=tuple(v for v in offer.versions if v not in skipped))
    if last is not None and last.on:
        return _while_on(remaining, last)
    kept = Choice(offer.versions)
    if last is not None and skips:
        kept = _without_rejected(remaining, last)._replace(skips=skips)
    current, newest = meant(offer, last), max(kept.versions, default=0)
    if offer.policy is None or current is None or newest <= current:
        return kept
    return _beside(remaining, current, begins=newest)


def rejected(offer: Offer, versions: Iterable[int], last: Record | None) -> tuple[RejectedVersion, ...]:
    """Return which of these versions were rejected as they are."""
    barred = last.barred if last is not None else ()
    present = (each for each in barred if each.version in versions)
    return tuple(each for each in present if offer.is_known(each.fingerprint, each.content, each.version))


def _without_rejected(remaining: Offer, last: Record) -> Choice:
    """Choose in place of rejected versions: the one that answers, or the newest that is left on the disk."""
    meant_before = answering(last)
    if meant_before in remaining.on_disk:
        return _beside(remaining, meant_before)
    if remaining.versions:
        return Choice(remaining.versions)
    tried = {each.version for each in rejected(remaining, remaining.on_disk, last)}
    if left := [version for version in remaining.on_disk if version not in tried]:
        return Choice((max(left),))
    return _beside(remaining, meant_before)  # as it runs, or nothing


def meant(offer: Offer, last: Record | None) -> int | None:
    """Return the version that requests without a version mean now; None without a READY one."""
    return answering(last) if last is not None and last.on else max(offer.ready, default=None)


def answering(record: Record) -> int:
    """Return the version that requests without a version mean because of a rollout."""
    status = record.status
    taken_over = status.state is RolloutState.DONE or (record.on and promoted(record))
    return status.candidate if taken_over else status.stable


def _while_on(offer: Offer, record: Record) -> Choice:
    status = record.status
    newest = max(offer.versions, default=0)
    if newest == status.candidate:
        # The files of a promoted version are its own matter again: it is reloaded at once.
        same = offer.is_known(record.fingerprint, record.content, newest)
        if status.state is RolloutState.PROMOTED or same:
            return _beside(offer, status.stable, without=None if _serves(offer, record) else newest)
        return _beside(offer, status.stable, begins=newest)
    current = meant(offer, record)
    if current in {*offer.ready, *offer.on_disk} and newest > current:
        return _beside(offer, current, begins=newest)
    why = f"version {status.candidate} is no longer to be served"
    return _beside(offer, status.stable)._replace(withdraws=why)


def _serves(offer: Offer, record: Record) -> bool:
    """Return whether a load is to serve the candidate too.

    One that has not loaded yet does not keep the stable version waiting where neither runs.
    """
    status = record.status
    if status.state is not RolloutState.LOADING or record.reloading or record.alone:
        return status.state is RolloutState.LOADING or judged(record)
    return status.stable in offer.ready or status.stable not in offer.on_disk


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


def differing(ready: Mapping[int, VersionEntry], record: Record | None) -> str:
    """Return how the configuration of a candidate differs from the stable version's, if both are there."""
    status = record.status if record is not None else None
    both = [ready.get(version) for version in (status.stable, status.candidate)] if status else []
    found = [entry.model_config for entry in both if entry is not None]
    return differences(*found) if len(found) == 2 else ""
