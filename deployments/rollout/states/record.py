"""The record of a rollout."""

from typing import Final

import msgspec

from app.core.installed.installation import PROGRAM
from app.core.rollout.history import RejectedVersion
from app.core.rollout.status import RolloutState, RolloutStatus
from deployments.rollout.judging.intervals import UNSEEN, Intervals

NEREID: Final = PROGRAM
"""Who changed a rollout when no person did."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, rename={"barred": "rejected"}):
    """All that is known of a rollout; it is kept in the cluster's store, and in files.

    Attributes:
        name: the model's identifier.
        status: what the API reports.
        fingerprint: of the candidate's files and configuration.
        content: of what the candidate's files say; "" if that is not known.
        salt: see `Split`.
        changed: when the weight last changed, Unix seconds.
        seen: requests of the candidate since then.
        first: percent once the candidate is loaded and has the replicas, if a person gave it.
        ends: what rolling back ends in.
        barred: versions that have failed, as they were then: only a person starts those again.
        pause: why it was paused before its versions were loaded anew, and is again then; "" if it was not.
        intervals: what durations have shown since loading, or a person's change of the weight; not stored.
    """

    name: str
    status: RolloutStatus
    fingerprint: str
    salt: str = ""
    changed: float = 0.0
    seen: int = 0
    first: float | None = None
    ends: RolloutState = RolloutState.FAILED
    barred: tuple[RejectedVersion, ...] = ()
    pause: str = ""
    content: str = ""
    intervals: Intervals = UNSEEN

    @property
    def on(self) -> bool:
        """Whether it still changes something."""
        return not self.status.state.over

    @property
    def changed_at(self) -> float:
        """When it last changed, Unix seconds."""
        return self.status.history[-1].at if self.status.history else self.status.since

    @property
    def alone(self) -> bool:
        """Whether the stable version is unloaded before the candidate is loaded: then there are no steps."""
        return self.status.spec.strategy == "resource_preserving"

    @property
    def reloading(self) -> bool:
        """Whether its versions are loaded anew, because neither runs: it goes on as it was then."""
        return self.status.state is RolloutState.LOADING and self.status.resumes is not None

    @property
    def text(self) -> str:
        """Its name in log lines."""
        return f"rollout of '{self.name}' from version {self.status.stable} to {self.status.candidate}"
