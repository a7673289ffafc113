"""The states of a rollout: each function returns the next record from the present one. Pure.

loading -> tape (`taping`) -> shadow -> step -> promoted -> done; any of them -> paused, or rolling_back ->
failed or aborted.
"""

import re
from typing import Any, Final, NamedTuple

import msgspec

from app.core.identifiers import name_of
from app.core.rollout.history import RejectedVersion
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.spec import JudgeRules, RolloutSpec
from app.core.rollout.split import WHOLE
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus, Verdict
from deployments.rollout.judging.intervals import UNSEEN
from deployments.rollout.states.record import NEREID, Record
from nereid_client.comparison.rules import ComparisonRules

MAX_HISTORY: Final = 24
"""Events that are kept: the oldest go first."""
MAX_BARRED: Final = 32
"""Candidates that have failed: the oldest are forgotten first."""
MAX_WHY: Final = 300
"""Characters of a reason: an error of a load may be a traceback."""
MAX_REJECTED_WHY: Final = 160
WARM_REQUESTS: Final = 20
WARM_SECONDS: Final = 5.0
"""What is not judged after a change of the weight: so many requests of the candidate, or so many seconds."""

NO_ROOM: Final = re.compile(
    r"out of memory|MemoryError|cannot allocate memory|not enough (free )?memory|no room", re.IGNORECASE
)
"""In the reason why a load failed."""
WEIGHTED: Final = (RolloutState.TAPE, RolloutState.SHADOW, RolloutState.STEP, RolloutState.PROMOTED)
"""States in which the candidate may be given requests."""


class Identity(NamedTuple):
    """What distinguishes a rollout, and its candidate, from others.

    Attributes:
        rollout: its name.
        fingerprint, salt, content: see `Record`.
    """

    rollout: str
    fingerprint: str
    salt: str
    content: str = ""


def begun(
    name: str,
    versions: tuple[int, int],
    spec: RolloutSpec,
    *,
    now: float,
    identity: Identity,
    who: str = NEREID,
    why: str = "",
    first: float | None = None,
    barred: tuple[RejectedVersion, ...] = (),
) -> Record:
    """Return a rollout whose candidate is to be loaded.

    Args:
        name: the model's identifier.
        versions: stable and candidate.
        spec: the policy.
        now: Unix seconds.
        identity: of the rollout and its candidate.
        who: who started it.
        why: what for.
        first: percent of the first step instead of the policy's.
        barred: candidates of the rollouts before, see `Record`.
    """
    rollout, fingerprint, salt, content = identity
    model, loading = name_of(name), RolloutState.LOADING
    history = (RolloutEvent(now, loading, 0.0, who, why),)
    status = RolloutStatus(model, rollout, *versions, loading, why, 0, 0.0, now, now, spec, history=history)
    others = tuple(each for each in barred if each.version != versions[1])
    return Record(name, status, fingerprint, salt, now, first=first, barred=others, content=content)


def loaded(record: Record, now: float, missing: str = "", differs: str = "") -> Record:
    """Go on from `loading`: the candidate is there, but for replicas that its weight needs.

    `differs` says how its configuration does from the stable version's.
    """
    why = f"loaded; of another configuration: {differs}" if differs else "loaded"
    if record.alone:
        return moved(record, RolloutState.DONE, now, NEREID, "loaded in place of the stable version", 100.0)
    first = first_percent(record)
    if missing:
        waiting = weighted(record, 0.0, now, NEREID, f"{why}: {missing}")
        return msgspec.structs.replace(waiting, first=first)
    serving = with_status(weighted(record, first, now, NEREID, why), resumes=None)
    return paused(msgspec.structs.replace(serving, pause=""), record.pause, now) if record.pause else serving


def first_percent(record: Record) -> float:
    """Return the weight of a candidate once it has loaded."""
    spec = record.status.spec
    if record.alone:
        return 100.0
    if record.first is not None:
        return record.first
    held = spec.mirror > 0 or (spec.steps and spec.steps[0] == 0)
    return 0.0 if held else next_percent(record)


def planned(record: Record, percent: float, now: float, who: str) -> Record:
    """Set the weight of a candidate that still loads."""
    why = f"to get {percent:g} % when it has loaded"
    noted = with_status(moved(record, RolloutState.LOADING, now, who, why), since=record.status.since)
    return msgspec.structs.replace(noted, first=percent)


def weighted(record: Record, percent: float, now: float, who: str, why: str) -> Record:
    """Give the candidate so many percent of the requests: in `shadow` none, in `promoted` all of them."""
    return moved(record, state_at(percent), now, who, why, percent)


def state_at(percent: float) -> RolloutState:
    """Return the state in which the candidate has so many percent."""
    if percent <= 0:
        return RolloutState.SHADOW
    return RolloutState.PROMOTED if percent >= 100 else RolloutState.STEP


def next_percent(record: Record) -> float:
    """Return the weight of the next step."""
    return record.status.next_percent


def moved(
    record: Record, state: RolloutState, now: float, who: str, why: str, percent: float | None = None
) -> Record:
    """Return the record in another state; a weight begins a new step, whose requests are counted anew."""
    old = record.status
    why = why if len(why) <= MAX_WHY else why[: MAX_WHY - 3] + "..."
    event = RolloutEvent(now, state, old.percent if percent is None else percent, who, why)
    new = msgspec.structs.replace(
        old, state=state, reason=why, since=now, history=(*old.history, event)[-MAX_HISTORY:]
    )
    if percent is None:
        return msgspec.structs.replace(record, status=new)
    new = msgspec.structs.replace(
        new, percent=percent, step=old.step + 1, outcomes=Outcomes(), verdict=Verdict()
    )
    return msgspec.structs.replace(record, status=new, changed=now, seen=0, first=None, intervals=UNSEEN)


def paused(record: Record, why: str, now: float, who: str = NEREID) -> Record:
    """Pause in the present weight."""
    status = record.status
    resumes = status.resumes if status.state is RolloutState.PAUSED else status.state
    return with_status(moved(record, RolloutState.PAUSED, now, who, why), resumes=resumes)


def resumed(record: Record, now: float, who: str) -> Record:
    """Go on where the rollout was paused; the step begins anew."""
    status = record.status
    if status.resumes is RolloutState.LOADING:
        loading = moved(record, RolloutState.LOADING, now, who, "resumed")
        return with_status(msgspec.structs.replace(loading, pause=""), resumes=None)
    return with_status(weighted(record, status.percent, now, who, "resumed"), resumes=None)


def rolling_back(
    record: Record, why: str, now: float, who: str = NEREID, ends: RolloutState = RolloutState.FAILED
) -> Record:
    """Take all requests from the candidate, which is to be deleted then."""
    returning = with_status(moved(record, RolloutState.ROLLING_BACK, now, who, why, 0.0), resumes=None)
    return msgspec.structs.replace(returning, ends=ends)


def rolled_back(record: Record, now: float) -> Record:
    """End a rollout whose candidate is gone."""
    return _barred(moved(record, record.ends, now, NEREID, record.status.reason))


def not_loaded(record: Record, why: str, now: float, tried: bool) -> Record:
    """End a rollout whose candidate could not be loaded, or was not `tried` because something else failed."""
    failed = with_status(moved(record, RolloutState.FAILED, now, NEREID, why), resumes=None, percent=0.0)
    return _barred(failed) if tried else failed


def _barred(record: Record) -> Record:
    status = record.status
    last = status.history[-1]
    decided = (each for each in reversed(status.history) if each.state is RolloutState.ROLLING_BACK)
    who = next(decided, last).who
    why = " ".join(status.reason.split())[:MAX_REJECTED_WHY]
    known = record.fingerprint, last.at, who, why, record.content
    return rejecting(record, RejectedVersion(status.candidate, *known))


def rejecting(record: Record, *rejected: RejectedVersion) -> Record:
    """Return the record with further versions that are rejected as they are."""
    numbers = {each.version for each in rejected}
    barred = (*(each for each in record.barred if each.version not in numbers), *rejected)
    return msgspec.structs.replace(record, barred=barred[-MAX_BARRED:])


def forgetting(record: Record, version: int | None) -> Record:
    """Return the record without what is known of a rejected version, or of all of them."""
    barred = tuple(each for each in record.barred if version not in (None, each.version))
    return msgspec.structs.replace(record, barred=barred)


def withdrawn(record: Record, why: str, now: float) -> Record:
    """End a rollout whose versions are no longer to be served; the candidate may be tried again."""
    return with_status(moved(record, RolloutState.ABORTED, now, NEREID, why, 0.0), resumes=None)


def alarmed(record: Record, why: str, now: float, percent: float | None = None) -> Record:
    """Roll back, or pause if the policy says so; then with this weight."""
    status = record.status
    if status.spec.rollback == "auto":
        return rolling_back(record, why, now)
    if status.state is RolloutState.PAUSED:
        return record
    if percent is None:
        return paused(record, why, now)
    return paused(weighted(record, percent, now, NEREID, why), why, now)


def unavailable(why: str, record: Record, now: float) -> Record:
    """React to an ingress that no longer sends requests to the candidate."""
    return alarmed(record, f"the candidate is unavailable: {why}", now, 0.0) if judged(record) else record


def absent(record: Record, now: float) -> Record:
    """Keep the stable version of a promoted candidate that an ingress finds no replica of."""
    return with_status(record, since=now) if record.status.state is RolloutState.PROMOTED else record


def judged(record: Record) -> bool:
    """Whether the candidate serves and may be rolled back."""
    status = record.status
    return status.state in WEIGHTED or (status.state is RolloutState.PAUSED and status.resumes in WEIGHTED)


def ticked(record: Record, now: float) -> Record:
    """Go on as time, counters and verdict say; the same record for no change."""
    status = record.status
    if status.verdict.alarms and judged(record):
        return alarmed(record, "; ".join(status.verdict.alarms), now)
    if status.state is RolloutState.PROMOTED:
        kept = now - status.since >= status.spec.keep_stable_seconds
        return moved(record, RolloutState.DONE, now, NEREID, "promoted") if kept else record
    if status.state in (RolloutState.SHADOW, RolloutState.STEP):
        return _stepped(record, now)
    return record


def held(missing: str, record: Record, now: float) -> Record:
    """Keep a weight whose next one waits for replicas; pause when they do not come."""
    status = record.status
    if now - status.since < status.spec.step.max_seconds:
        return record
    return paused(record, f"no room: {missing}", now)


def _stepped(record: Record, now: float) -> Record:
    if record.first is not None and record.first > record.status.percent:
        return _raised(record, record.first, now, "its replicas run")
    rules, elapsed = record.status.spec.step, now - record.status.since
    requests = record.status.step_requests
    holds = record.status.verdict.holds if next_percent(record) >= 100 else ""
    if elapsed >= rules.min_seconds and requests >= rules.min_requests and not holds:
        why = f"{requests} requests in {elapsed:.0f} s without an alarm"
        return _raised(record, next_percent(record), now, why)
    if elapsed >= rules.max_seconds:
        why = f"inconclusive: {holds or f'{requests} of {rules.min_requests} requests'} in {elapsed:.0f} s"
        return paused(record, why, now)
    return record


def _raised(record: Record, percent: float, now: float, why: str) -> Record:
    """Begin the next step, with the evidence so far: many short steps would each have too little."""
    seen = record.intervals.carried()
    return msgspec.structs.replace(weighted(record, percent, now, NEREID, why), intervals=seen)


def counted(record: Record, step: int, outcomes: Outcomes, now: float, source: str = "") -> Record:
    """Add what an ingress (`source`) counted; all of it to the total, to the step only what is judged."""
    status = record.status
    record = with_status(record, total=status.total + outcomes)
    if step != status.step:
        return record
    if record.seen < WARM_REQUESTS and now - record.changed < WARM_SECONDS:
        candidate, mirrored = outcomes.candidate, outcomes.mirror
        seen = candidate.decided + mirrored.compared + mirrored.failed
        return msgspec.structs.replace(record, seen=record.seen + seen)
    record = msgspec.structs.replace(record, intervals=record.intervals.add(source, outcomes))
    return with_status(record, outcomes=status.outcomes + outcomes)


def promoted(record: Record) -> bool:
    """Whether the candidate has all requests but those that are held back."""
    return RolloutState.PROMOTED in (record.status.state, record.status.resumes)


def rules(record: Record) -> JudgeRules:
    """Return what is judged now: durations only while both versions answer."""
    status = record.status
    taping = RolloutState.TAPE in (status.state, status.resumes)
    if taping or (promoted(record) and not status.spec.holdback):
        return msgspec.structs.replace(status.spec.judge, latency=None, compute=None)
    return status.spec.judge


def comparison(record: Record) -> ComparisonRules:
    """Return what mirrored outputs may differ by."""
    given = record.status.spec.judge.output or ComparisonRules()
    return ComparisonRules(given.outputs, given.margin, given.min_agreement)


def weight(record: Record) -> int:
    """Return the candidate's parts of `WHOLE`; once promoted it has all but what is held back."""
    status = record.status
    percent = status.percent
    if promoted(record):
        # Keys that a step gave to the candidate stay there.
        percent = max(100 - status.spec.holdback, *(step for step in (0.0, *status.spec.steps) if step < 100))
    return round(percent * WHOLE / 100)


def with_status(record: Record, **changes: Any) -> Record:
    """Return a record with other fields of its status."""
    return msgspec.structs.replace(record, status=msgspec.structs.replace(record.status, **changes))
