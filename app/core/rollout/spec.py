"""How a new version of a model takes over: the contents of `rollout.yaml` in the model's directory.

tritonserver ignores the file. A request to the rollout API may bring the same fields, which are used instead.
"""

from typing import Annotated, Literal

import msgspec

from nereid_client.comparison.rules import ComparisonRules

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class StepRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a step has passed: after both minima without an alarm; after `max_seconds` the rollout pauses."""

    min_seconds: Seconds = 60.0
    min_requests: Annotated[int, msgspec.Meta(ge=0)] = 200
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] = 3600.0


class HeaderRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests with this HTTP header or gRPC metadata go to one of the two versions, whatever the weight."""

    header: Annotated[str, msgspec.Meta(min_length=1)]
    value: str
    version: Literal["candidate", "stable"] = "candidate"


class ErrorRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the candidate's requests that may fail."""

    budget: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.01


class LatencyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate may take `ratio` times as long as the stable version at this quantile.

    At the same time; a millisecond more is always allowed.
    """

    ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95


class ComputeRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate may take `ratio` times as long for an execution as the stable version for as many rows.

    At this quantile; a millisecond more is always allowed.
    """

    ratio: Annotated[float, msgspec.Meta(ge=1)] = 1.5
    quantile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95


class OutputRules(ComparisonRules, frozen=True, forbid_unknown_fields=True):
    """The differences that mirrored outputs may have.

    Attributes:
        max_difference: no longer used: it was relative to values near 0. A policy that has it is refused.
    """

    max_difference: float | None = None

    @property
    def given(self) -> bool:
        """Whether answers are to be within rules; they are compared, and counted, without that too."""
        return bool(self.outputs) or self.min_agreement is not None


class ScoreRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much lower the mean of the scores that clients give later (`feedback`) may be, or the accuracy."""

    allowed_drop: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.01


class TapeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recorded requests that the candidate answers before it gets any of clients.

    Attributes:
        requests: the newest ones of the model that can be repeated.
        max_seconds: how long that may take.
        in_flight: at once, from each ingress.
        speed: `max`, or times the mean rate at which they were recorded.
        required: whether too few of them pause the rollout; otherwise it goes on, and says so.
        confidence: with which enough answers have to be right.
    """

    requests: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 2000
    max_seconds: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=256)] = 8
    speed: Literal["max"] | Annotated[float, msgspec.Meta(gt=0)] = "max"
    required: bool = False
    confidence: Annotated[float, msgspec.Meta(gt=0.5, lt=1)] = 0.99


class ClassRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The candidate may answer with a class more often than the stable version by this share of all answers.

    At the same time, by the classes of `output`; by default the first output that has classes.
    """

    allowed: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.02
    output: str = ""


class JudgeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is judged. `confidence` is that of an alarm; None switches a rule off."""

    errors: ErrorRule | None = ErrorRule()
    latency: LatencyRule | None = LatencyRule()
    compute: ComputeRule | None = ComputeRule()
    output: OutputRules | None = OutputRules()
    score: ScoreRule | None = None
    drift: ClassRule | None = None
    confidence: Annotated[float, msgspec.Meta(gt=0.5, lt=1)] = 0.999


class RolloutSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The policy of a rollout.

    Attributes:
        steps: percent of the requests without a version that go to the candidate, rising; 100 follows.
        sticky: `none`, `id`, `header:NAME` or `parameter:NAME`: equal values go to the same version.
        match: header rules, asked in this order.
        tape: recorded requests by which it is judged first; None for none.
        mirror: percent of the stable version's requests that are repeated at the candidate.
        on_error: `stable`: a failure of the candidate is answered by the stable version.
        hang_seconds: what the candidate has not answered, or gone on with, for so long has failed.
        rollback: `auto`: an alarm rolls back; `pause`: it pauses the rollout.
        keep_stable_seconds: how long the stable version stays loaded after the promotion.
        holdback: percent of the requests that it answers until then, by which durations are judged; 0: none.
        strategy: `parallel`: both versions are loaded; `resource_preserving` unloads the stable one first.
    """

    steps: tuple[Percent, ...] = (1.0, 5.0, 25.0, 50.0)
    step: StepRules = StepRules()
    sticky: Annotated[str, msgspec.Meta(pattern="^(none|id|(header|parameter):.+)$")] = "none"
    match: tuple[HeaderRule, ...] = ()
    tape: TapeRules | None = None
    mirror: Percent = 0.0
    judge: JudgeRules = JudgeRules()
    on_error: Literal["stable", "none"] = "stable"
    hang_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    rollback: Literal["auto", "pause"] = "auto"
    keep_stable_seconds: Seconds = 300.0
    holdback: Annotated[float, msgspec.Meta(ge=0, le=50)] = 1.0
    strategy: Literal["parallel", "resource_preserving"] = "parallel"
