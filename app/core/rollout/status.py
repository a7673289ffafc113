"""The status of a rollout, as the API reports it, and requests to change one."""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from app.core.rollout.history import RejectedVersion
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.saving import Saving
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.tape_evidence import TapeEvidence

RolloutAction = Literal["start", "set", "pause", "resume", "promote", "abort", "rollback", "forget"]
ROLLOUT_ACTIONS: Final[tuple[RolloutAction, ...]] = get_args(RolloutAction)


class RolloutState(StrEnum):
    """loading -> tape -> shadow -> step -> promoted -> done; the others leave that way."""

    LOADING = "loading"
    TAPE = "tape"
    """The candidate is loaded, and answers nothing but recorded requests."""
    SHADOW = "shadow"
    """At weight 0: the candidate is loaded, and answers requests by header rules and mirrored ones."""
    STEP = "step"
    PROMOTED = "promoted"
    """The candidate answers everything; the stable version stays loaded for `keep_stable_seconds`."""
    DONE = "done"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    FAILED = "failed"
    """Rolled back, or the candidate could not be loaded."""
    ABORTED = "aborted"
    """Rolled back because a person said so."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RolloutState.DONE, RolloutState.FAILED, RolloutState.ABORTED)


class RolloutEvent(msgspec.Struct, frozen=True):
    """A change of a rollout: when (Unix seconds), to what, by whom and why. `percent` is the weight."""

    at: float
    state: RolloutState
    percent: float
    who: str
    why: str


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The judge's verdict on a step.

    Attributes:
        alarms: what is wrong with the candidate, each with its figures; empty for nothing.
        evidence: for each rule, by how much the data speak against the candidate (an alarm from
            1 / (1 - confidence) on).
        detectable: the smallest error rate of the candidate that would have given an alarm by now with 95 %;
            1 with too few requests.
        waiting: what is still to be awaited before it is judged, in words; "" for nothing.
        holds: why the candidate may not take over yet, though nothing speaks against it; "" if it may.
    """

    alarms: tuple[str, ...] = ()
    evidence: dict[str, float] = {}
    detectable: float = 1.0
    waiting: str = ""
    holds: str = ""


class RolloutStatus(msgspec.Struct, frozen=True):
    """A rollout that is on, or the last one of a model.

    Attributes:
        model: the name for clients.
        rollout: names this rollout.
        stable, candidate: the two versions.
        state, reason: what it does, and why.
        step: the number of changes of the weight so far.
        percent: the weight now.
        since, started: when the state and the rollout began, Unix seconds.
        resumes: the state that a paused rollout goes on in.
        outcomes: of this step, since judging began. `total` is of the whole rollout.
        history: newest last, bounded.
        rejected: versions that get no requests, because they were rolled back.
        tape: what recorded requests have shown; None without any.
        saving: of the candidate since it answers everything; None before, and where costs are not counted.
    """

    model: str
    rollout: str
    stable: int
    candidate: int
    state: RolloutState
    reason: str
    step: int
    percent: float
    since: float
    started: float
    spec: RolloutSpec
    resumes: RolloutState | None = None
    outcomes: Outcomes = msgspec.field(default_factory=Outcomes)
    total: Outcomes = msgspec.field(default_factory=Outcomes)
    verdict: Verdict = Verdict()
    history: tuple[RolloutEvent, ...] = ()
    rejected: tuple[RejectedVersion, ...] = ()
    tape: TapeEvidence | None = None
    saving: Saving | None = None

    @property
    def step_requests(self) -> int:
        """Requests that speak for or against the candidate in this step."""
        mirrored = self.outcomes.mirror
        if self.state is RolloutState.STEP:
            return self.outcomes.candidate.judged
        return self.outcomes.candidate.judged + mirrored.compared + mirrored.failed

    @property
    def next_percent(self) -> float:
        """The weight of the next step."""
        return min((step for step in self.spec.steps if step > self.percent), default=100.0)


class RolloutChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request to change a rollout: the body of `POST /v2/repository/models/<model>/rollout`.

    Attributes:
        action: `start` also tries a candidate again that has failed; `set` changes weight or spec.
        candidate: the version that `start` rolls out; None for the newest of the repository.
        weight: percent, for `start` and `set`.
        spec: fields of a `RolloutSpec`, instead of those of `rollout.yaml`.
        version: that `rollback` goes back to, by default what served before; that `forget` brings back, by
            default each that was rejected.
        why: a reason, for the history.
        user: who asks, as a client without a token says.
    """

    action: RolloutAction
    candidate: int | None = None
    weight: float | None = None
    spec: dict[str, Any] | None = None
    version: int | None = None
    why: Annotated[str, msgspec.Meta(max_length=200)] = ""
    user: Annotated[str, msgspec.Meta(max_length=64)] = ""
