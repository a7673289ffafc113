"""What a model has served: when which version took over or was rejected, by whom and why."""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from app.core.installed.installation import PROGRAM
from app.core.rollout.saving import Saving

ServedChange = Literal[
    "loaded", "unloaded", "started", "promoted", "done", "failed", "aborted", "rolled back", "forgotten"
]
"""What happened: a load by the version policy or a request, or a step of a rollout."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a change was decided by: requests of both versions, and the judge's evidence by rule."""

    stable_requests: int = 0
    stable_failed: int = 0
    candidate_requests: int = 0
    candidate_failed: int = 0
    mirrored: int = 0
    rules: dict[str, float] = {}


class ServedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of what a model serves.

    Attributes:
        at: when, Unix seconds.
        what: happened.
        version: answers requests without a version from then on; 0 for none.
        who: the token's name, or what a client without one says; `nereid` for the server itself.
        why: the reason, or the alarm.
        candidate: the other version of a rollout; 0 for none.
        evidence: of a rollout; None for other changes.
    """

    at: float
    what: ServedChange
    version: int
    who: str
    why: str
    candidate: int = 0
    evidence: Evidence | None = None


class RejectedVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version that was rolled back, or could not be loaded: it gets no requests while its files are these.

    Attributes:
        version: its number.
        fingerprint: of its files and the model's configuration, by names, sizes and times.
        at: when it was rejected, Unix seconds.
        who: rejected it.
        why: the reason.
        content: a digest of what the files say; "" where that is not known.
    """

    version: int
    fingerprint: str
    at: float = 0.0
    who: str = ""
    why: str = ""
    content: str = ""


class RolloutHistory(msgspec.Struct, frozen=True):
    """The history of a model.

    Attributes:
        model: its name for clients.
        version: answers requests without a version now; 0 for none.
        events: newest last, bounded.
        rejected: versions that get no requests.
        saving: what the candidate of the last rollout saves; None if nothing is known of it.
    """

    model: str
    version: int
    events: tuple[ServedEvent, ...] = ()
    rejected: tuple[RejectedVersion, ...] = ()
    saving: Saving | None = None


def rejection_text(model: str, rejected: RejectedVersion) -> str:
    """Return a sentence about a rejected version, with the ways out."""
    when = datetime.fromtimestamp(rejected.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    by = f"by {rejected.who or PROGRAM}" + (f" for: {rejected.why}" if rejected.why else "")
    return (
        f"version {rejected.version} was rolled back on {when} {by}; it gets no requests; "
        f"'nereid rollout forget {model}' or new files bring it back"
    )
