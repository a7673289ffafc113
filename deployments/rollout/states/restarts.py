"""How rollouts go on after a restart of the manager, the server or the cluster. Pure."""

from collections.abc import Collection

import msgspec

from app.core.identifiers import name_of
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.split import WHOLE, Split
from app.core.rollout.status import RolloutState, RolloutStatus
from deployments.rollout.states import taping
from deployments.rollout.states.machine import judged, moved, paused, rolling_back, state_at, with_status
from deployments.rollout.states.record import NEREID, Record


def recovered(ready: Collection[int], record: Record, now: float) -> Record:
    """Return how a stored rollout goes on with the versions that Serve runs (`ready`)."""
    status = record.status
    stable, candidate = status.stable in ready, status.candidate in ready
    if status.state is RolloutState.LOADING:
        return taping.loaded(record, now) if candidate and (stable or record.alone) else record
    if not judged(record) or (stable and candidate):
        return record
    if not stable and not candidate:  # the whole cluster has been away
        return reloaded(record, now)
    if candidate:
        return stable_gone(record, now)
    return rolling_back(record, f"version {status.candidate} was gone after a restart", now)


def reloaded(record: Record, now: float) -> Record:
    """Load both versions anew, and go on as before then: in this state, with this weight."""
    status = record.status
    loading = moved(record, RolloutState.LOADING, now, NEREID, "neither version runs")
    if status.state is RolloutState.PAUSED:
        loading = msgspec.structs.replace(loading, pause=status.reason)
    else:
        loading = with_status(loading, resumes=status.state)
    first = record.first if taping.is_taping(record) else status.percent
    return msgspec.structs.replace(loading, first=first)


def stable_gone(record: Record, now: float) -> Record:
    """Pause a rollout whose stable version is gone: the candidate answers everything."""
    return paused(record, f"stable version {record.status.stable} is gone", now)


def found(split: Split, spec: RolloutSpec, fingerprint: str, now: float) -> Record:
    """Return the record of a rollout whose own was lost, as an ingress routes by it: a person decides.

    Args:
        split: what the ingress has.
        spec: the policy, which a person may have changed.
        fingerprint: of the candidate's files and configuration.
        now: Unix seconds.
    """
    was = RolloutState(split.state)
    percent = 100.0 if split.held_back else split.weight / WHOLE * 100
    text = "the cluster's store has lost this rollout: the weight is that of an ingress, counters begin anew"
    if was is not RolloutState.LOADING:  # when no requests are mirrored, nor sent by header rules
        spec = msgspec.structs.replace(
            spec,
            sticky=split.sticky,
            match=split.match,
            mirror=split.mirror / WHOLE * 100,
            on_error="stable" if split.stable_on_error else "none",
            hang_seconds=split.hang_seconds,
        )
    status = RolloutStatus(
        name_of(split.name),
        split.rollout,
        split.stable,
        split.candidate,
        was,
        text,
        split.step,
        percent,
        now,
        now,
        spec,
    )
    record = Record(split.name, status, fingerprint, split.salt, now)
    if was is RolloutState.ROLLING_BACK:
        return moved(record, was, now, NEREID, text)
    if was is not RolloutState.LOADING:
        record = with_status(record, state=was if was is RolloutState.TAPE else state_at(percent))
    return paused(record, text, now)
