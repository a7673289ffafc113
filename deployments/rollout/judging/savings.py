"""What promoted versions save, anew each minute, by what both versions consume."""

from collections.abc import Coroutine, Iterable
from typing import Any, Final, Protocol

import msgspec

from app.core.cost.minutes import MINUTES, Minutes, MinuteUse, minute_of
from app.core.cost.reports import VersionSaving
from app.core.identifiers import name_of
from app.core.rollout.report import Estimate
from app.core.rollout.saving import Saving, saving
from app.core.rollout.status import RolloutState, RolloutStatus
from app.core.system.tasks import Tasks

FOLLOW_S: Final = 7 * 86_400.0
"""How long after its promotion a version is followed."""
_LATE_S: Final = 15.0
"""After this the reports of a minute have come."""
_TICKS: Final = 60
_SAVE_TICKS: Final = 600
_STARTING: Final = 2
"""Minutes of a version in which it loads and warms up."""
_MAX_BASELINES: Final = 1000
_SERVING: Final = (RolloutState.PROMOTED, RolloutState.DONE)
_LOST: Final = "the minutes before the promotion are gone: the manager has started anew since then"


class Promoted(Protocol):
    """A rollout of a model."""

    @property
    def name(self) -> str:
        """The model's identifier."""

    @property
    def status(self) -> RolloutStatus:
        """The status that the API reports."""


class Promotions(Protocol):
    """The rollouts of all models."""

    def in_service(self) -> Iterable[Promoted]:
        """Return those whose candidates answer everything."""

    def saves(self, name: str, saving: Saving | None) -> None:
        """Set what a candidate saves."""

    def save(self, name: str) -> Coroutine[Any, Any, None]:
        """Store a rollout."""

    def now(self) -> float:
        """Return the time, in Unix seconds."""


class Savings:
    """Follows the versions that have been promoted.

    Args:
        minutes: what each version consumes.
        rollouts: get what their candidates save.
        tasks: what runs in the background.
    """

    def __init__(self, minutes: Minutes, rollouts: Promotions, tasks: Tasks) -> None:
        self._minutes, self._rollouts, self._tasks = minutes, rollouts, tasks
        self._baselines: dict[str, list[MinuteUse]] = {}
        self._counted: dict[str, int] = {}  # the first minute whose rows are not counted yet
        self._ticks = 0

    def tick(self) -> None:
        """Look at all of them once a minute; called each second."""
        self._ticks += 1
        for each in self._rollouts.in_service() if self._ticks % _TICKS == 0 else ():
            self._rollouts.saves(each.name, self.look(each.name, each.status, self._rollouts.now()))
            if self._ticks % _SAVE_TICKS == 0:
                self._tasks.start(self._rollouts.save(each.name))

    def look(self, name: str, status: RolloutStatus, now: float) -> Saving | None:
        """Return what a rollout's candidate has saved; None before it is promoted.

        Args:
            name: the model's identifier.
            status: of the rollout.
            now: Unix seconds.
        """
        since = promoted_at(status)
        if since is None or now - since > FOLLOW_S:
            return status.saving
        model, until = name_of(name), minute_of(now - _LATE_S)
        baseline = self._baseline(model, status, minute_of(since))
        new = self._minutes.of(model, str(status.candidate), minute_of(since) + 1, until)
        if not baseline and not self._minutes.of(model, str(status.candidate)):  # nobody accounts for costs
            return status.saving
        known = status.saving or Saving()
        first = self._counted.get(status.rollout, 0)
        rows = known.rows + sum(use.rows for use in new if use.minute >= first)
        self._counted[status.rollout] = until
        if not baseline and known.share is not None:
            return _scaled(known, rows)
        found = saving(baseline, new, rows)
        return found if baseline or not known.rows else msgspec.structs.replace(found, waiting=_LOST)

    def _baseline(self, model: str, status: RolloutStatus, until: int) -> list[MinuteUse]:
        """Return the stable version's minutes before the promotion; they are kept: it may stay loaded."""
        if status.rollout not in self._baselines:
            found = self._minutes.of(model, str(status.stable), 0, until)
            self._baselines[status.rollout] = found if len(found) == MINUTES else found[_STARTING:]
            while len(self._baselines) > _MAX_BASELINES:
                oldest = next(iter(self._baselines))
                del self._baselines[oldest]
                self._counted.pop(oldest, None)
        return self._baselines[status.rollout]


def promoted_at(status: RolloutStatus) -> float | None:
    """Return since when the candidate answers everything, Unix seconds; None if it does not."""
    found = None
    for event in reversed(status.history):
        if event.state in _SERVING:
            found = event.at
        elif event.state is not RolloutState.PAUSED:
            break
    return found if status.state in _SERVING else None


def known_savings(rollouts: Iterable[Promoted]) -> tuple[VersionSaving, ...]:
    """Return what is known of what the candidates of rollouts save."""
    found = ((each.name, each.status, each.status.saving) for each in rollouts)
    return tuple(
        VersionSaving(name, status.candidate, saving.share.low, saving.share.value, saving.share.high)
        for name, status, saving in found
        if saving is not None and saving.share is not None
    )


def _scaled(known: Saving, rows: int) -> Saving:
    """Return what is known of the time a row, for more rows."""
    if known.core_seconds is None or not known.rows:
        return known
    more = rows / known.rows
    saved = Estimate(*(more * each for each in msgspec.structs.astuple(known.core_seconds)))
    return msgspec.structs.replace(known, rows=rows, core_seconds=saved)
