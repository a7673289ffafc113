"""Bodies of the rollout API, for its OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, Field

RolloutStateName = Literal[
    "loading", "tape", "shadow", "step", "promoted", "done", "paused", "rolling_back", "failed", "aborted"
]


class RolloutRequest(BaseModel):
    """`candidate` is for `start`, percent `weight` and `spec` (see `rollout.yaml`) for `start` and `set`.

    `version` is for `rollback` (by default what served before) and `forget` (by default all that were
    rejected). `why` is for the history, `user` too where there is no token.
    """

    action: Literal["start", "set", "pause", "resume", "promote", "abort", "rollback", "forget"]
    candidate: int | None = None
    weight: float | None = Field(None, ge=0, le=100)
    spec: dict[str, Any] | None = None
    version: int | None = None
    why: str = Field("", max_length=200)
    user: str = Field("", max_length=64)


class VersionOutcomes(BaseModel):
    """Requests of one version, as clients saw them; `latencies` by bucket: up to 2^(n/4) microseconds.

    `executions` of its replicas are by bucket of their rows, then of their duration; `reasons` are the most
    frequent texts of its failures.
    """

    ok: int
    failed: int
    refused: int
    cancelled: int
    rescued: int
    late: int
    prompt: int
    latencies: dict[str, int]
    executions: dict[str, dict[str, int]]
    reasons: dict[str, int]
    classes: dict[str, int]


class MirrorOutcomes(BaseModel):
    """Requests of the stable version that were repeated at the candidate."""

    compared: int
    differing: int
    disagreeing: int
    failed: int
    near_ties: int
    skipped: int
    max_difference: float


class RolloutOutcomes(BaseModel):
    """What became of the requests."""

    stable: VersionOutcomes
    candidate: VersionOutcomes
    mirror: MirrorOutcomes


class RolloutEstimate(BaseModel):
    """A value, and the interval in which it lies with 95 %."""

    value: float
    low: float
    high: float


class VersionFigures(BaseModel):
    """Answered and failed requests of one version; `latency_ms` by quantile."""

    requests: int
    error_rate: RolloutEstimate | None
    latency_ms: dict[str, RolloutEstimate]


class RolloutFigures(BaseModel):
    """Both versions; `agreement` is of mirrored answers."""

    stable: VersionFigures
    candidate: VersionFigures
    agreement: RolloutEstimate | None


class RolloutVerdict(BaseModel):
    """What the judge says; `evidence` by rule, `detectable` is an error rate of the candidate.

    `holds` is why it may not take over yet.
    """

    alarms: list[str]
    evidence: dict[str, float]
    detectable: float
    waiting: str
    holds: str


class RolloutEvent(BaseModel):
    """A change of the rollout; `at` is in seconds since 1970."""

    at: float
    state: RolloutStateName
    percent: float
    who: str
    why: str


class RejectedVersion(BaseModel):
    """A version that gets no requests while its files are these; `at` is in seconds since 1970."""

    version: int
    fingerprint: str
    at: float
    who: str
    why: str
    content: str


class RolloutEvidence(BaseModel):
    """What a change was decided by: requests of both versions, and the evidence of each rule."""

    stable_requests: int
    stable_failed: int
    candidate_requests: int
    candidate_failed: int
    mirrored: int
    rules: dict[str, float]


class ServedEvent(BaseModel):
    """A change of what a model serves; `version` answers requests without one from then on."""

    at: float
    what: str
    version: int
    who: str
    why: str
    candidate: int
    evidence: RolloutEvidence | None


class RolloutSaving(BaseModel):
    """What the candidate saves since it answers everything, beside what the stable version would have taken.

    `share` is of its processor time; `waiting` says why nothing can be said yet.
    """

    stable_minutes: int
    minutes: int
    rows: int
    share: RolloutEstimate | None
    core_seconds: RolloutEstimate | None
    stable_ms: float
    new_ms: float
    waiting: str


class RolloutHistory(BaseModel):
    """What a model has served, the newest event last, and what is rejected."""

    model: str
    version: int
    events: list[ServedEvent]
    rejected: list[RejectedVersion]
    saving: RolloutSaving | None


class WorstRow(BaseModel):
    """A recorded request that the candidate has answered otherwise; `row` names it on the tape."""

    row: str
    id: str
    severity: float
    why: str


class Acceptance(BaseModel):
    """What so many answers show: no more than `bound` are bad; after `missing` more good ones, `allowed`."""

    bad: int
    total: int
    allowed: float
    confidence: float
    bound: float
    missing: int


class TapeOfNode(BaseModel):
    """Recorded requests of one node; `parts` and `done` are bits of the parts that they are divided into."""

    rows: int
    parts: int
    done: int
    left_out: dict[str, int]


class TapeEvidence(BaseModel):
    """What recorded requests have shown of the candidate; `decided` once that is so."""

    tapes: dict[str, TapeOfNode]
    asked: bool
    mirror: MirrorOutcomes
    worst: list[WorstRow]
    accepted: Acceptance | None
    decided: str


class Rollout(BaseModel):
    """A rollout that is on, or the last one of the model; times are in seconds since 1970.

    `outcomes` are those of this step since it is judged, `total` and `figures` those of the whole rollout.
    """

    model: str
    rollout: str
    stable: int
    candidate: int
    state: RolloutStateName
    reason: str
    step: int
    percent: float
    since: float
    started: float
    spec: dict[str, Any]
    resumes: RolloutStateName | None
    outcomes: RolloutOutcomes
    total: RolloutOutcomes
    verdict: RolloutVerdict
    history: list[RolloutEvent]
    rejected: list[RejectedVersion]
    tape: TapeEvidence | None
    saving: RolloutSaving | None
    figures: RolloutFigures
