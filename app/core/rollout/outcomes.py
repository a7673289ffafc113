"""Outcomes of the requests of a rollout: counted in ingresses, added up and judged in the manager."""

from collections import Counter
from collections.abc import Iterable
from math import ceil, log2
from typing import Final

import msgspec

from app.core.rollout.tape import TapeFound, TapePart

_BUCKETS_A_DOUBLING: Final = 4
MOST_REASONS: Final = 5
_MOST_COUNTED: Final = 50
"""Different texts in one second of one ingress: those that carry a number, say, are not kept."""
_REASON_LETTERS: Final = 160
_MOST_CLASSES: Final = 256
"""Classes of answers that are told apart."""
OTHER_CLASS: Final = "(other)"
LATENCY_RATIO: Final = 2 ** (1 / _BUCKETS_A_DOUBLING)
"""The ratio of the bounds of a latency bucket: n is of durations up to `LATENCY_RATIO ** n` microseconds."""


Executions = dict[int, dict[int, int]]
"""Numbers of executions by bucket of their rows, then of their duration in microseconds, see `log_bucket`."""

COMPUTE: Final = "executions"
"""The control verb by which the manager reads the `Executions` of a replica since the last time."""


def log_bucket(value: float) -> int:
    """Return the bucket of a duration in microseconds or of a number of rows, see `LATENCY_RATIO`."""
    return ceil(log2(max(value, 1.0)) * _BUCKETS_A_DOUBLING)


class VersionOutcomes(msgspec.Struct, omit_defaults=True):
    """Requests that one version of a rollout was asked, as their clients saw them.

    Attributes:
        ok: answered.
        failed: failed by the server: INTERNAL, UNAVAILABLE, a replica lost, a deadline passed, no answer for
            `hang_seconds` (of the stable version, whatever comes later); by the candidate alone.
        refused: as INVALID_ARG, NOT_FOUND and the like.
        cancelled: given up by the client before its deadline.
        rescued: of those that failed, how many the stable version then answered.
        late: in flight for much longer than the stable version's answers take, see `app.rollout.flights`.
        prompt: answered, failed or refused before that.
        latencies: numbers of answered requests by bucket of their duration, see `LATENCY_RATIO`.
        executions: those of its replicas, for whatever requests.
        reasons: numbers of failed requests by the most frequent texts; mirrored requests too.
        classes: numbers of answered rows by class, where the rollout compares them.
    """

    ok: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    rescued: int = 0
    late: int = 0
    prompt: int = 0
    latencies: dict[int, int] = {}
    executions: Executions = {}
    reasons: dict[str, int] = {}
    classes: dict[str, int] = {}

    @property
    def judged(self) -> int:
        """Requests that were answered or failed by the server."""
        return self.ok + self.failed

    @property
    def decided(self) -> int:
        """Requests of which the version has shown anything: all but those that are in flight for a while."""
        return max(self.judged + self.refused, self.prompt + self.late)

    def add_reason(self, text: str) -> None:
        """Count a failure by the first line of its text."""
        short = (text.strip().splitlines() or ["no reason was given"])[0][:_REASON_LETTERS]
        self.reasons[short] = self.reasons.get(short, 0) + 1
        if len(self.reasons) > _MOST_COUNTED:
            self.reasons = dict(Counter(self.reasons).most_common(MOST_REASONS))

    def add_classes(self, names: Iterable[str]) -> None:
        """Count the classes of an answer; those beyond a bound are one."""
        for name in names:
            known = name in self.classes or len(self.classes) < _MOST_CLASSES
            counted = name if known else OTHER_CLASS
            self.classes[counted] = self.classes.get(counted, 0) + 1

    def __add__(self, other: "VersionOutcomes") -> "VersionOutcomes":
        return VersionOutcomes(
            self.ok + other.ok,
            self.failed + other.failed,
            self.refused + other.refused,
            self.cancelled + other.cancelled,
            self.rescued + other.rescued,
            self.late + other.late,
            self.prompt + other.prompt,
            dict(Counter(self.latencies) + Counter(other.latencies)),
            joined(self.executions, other.executions),
            dict((Counter(self.reasons) + Counter(other.reasons)).most_common(MOST_REASONS)),
            dict((Counter(self.classes) + Counter(other.classes)).most_common(_MOST_CLASSES)),
        )


def joined(one: Executions, other: Executions) -> Executions:
    """Add executions to others."""
    return {
        rows: dict(Counter(one.get(rows, {})) + Counter(other.get(rows, {})))
        for rows in one.keys() | other.keys()
    }


class MirrorOutcomes(msgspec.Struct, omit_defaults=True):
    """Requests of the stable version that were repeated at the candidate.

    Attributes:
        compared: both versions answered.
        differing: of those, outside the tolerances of the spec.
        disagreeing: of the others, with another largest element.
        near_ties: of the others, whose largest elements lead by less than the spec's margin.
        failed: the candidate failed, or answered with outputs other than its configuration says.
        skipped: not repeated, because the mirror's own limits were reached.
        max_difference: the largest difference of two elements.
    """

    compared: int = 0
    differing: int = 0
    disagreeing: int = 0
    failed: int = 0
    skipped: int = 0
    max_difference: float = 0.0
    near_ties: int = 0

    @property
    def bad(self) -> int:
        """Answers outside the rules."""
        return self.differing + self.disagreeing

    @property
    def telling(self) -> int:
        """Answers that speak for or against the candidate."""
        return self.compared - self.near_ties

    def __add__(self, other: "MirrorOutcomes") -> "MirrorOutcomes":
        return MirrorOutcomes(
            self.compared + other.compared,
            self.differing + other.differing,
            self.disagreeing + other.disagreeing,
            self.failed + other.failed,
            self.skipped + other.skipped,
            max(self.max_difference, other.max_difference),
            self.near_ties + other.near_ties,
        )


class Outcomes(msgspec.Struct, omit_defaults=True):
    """The outcomes of the requests of one step of a rollout."""

    stable: VersionOutcomes = msgspec.field(default_factory=VersionOutcomes)
    candidate: VersionOutcomes = msgspec.field(default_factory=VersionOutcomes)
    mirror: MirrorOutcomes = msgspec.field(default_factory=MirrorOutcomes)

    def of(self, is_candidate: bool) -> VersionOutcomes:
        """Return those of one version."""
        return self.candidate if is_candidate else self.stable

    def __add__(self, other: "Outcomes") -> "Outcomes":
        return Outcomes(
            self.stable + other.stable, self.candidate + other.candidate, self.mirror + other.mirror
        )


class StepOutcomes(msgspec.Struct):
    """The outcomes of one step of one rollout since the last report.

    `unavailable` says why the reporting ingress sends no requests to the candidate any more; "" if it does.
    `absent` says that it sends none now, because no replica is available. `found` is what there is on a tape;
    with a `part`, the outcomes are those of all of its rows.
    """

    rollout: str
    step: int
    outcomes: Outcomes
    unavailable: str = ""
    absent: bool = False
    found: TapeFound | None = None
    part: TapePart | None = None


class OutcomeReport(msgspec.Struct):
    """What one ingress counted since its last report; `number` rises by one, so that none is added twice."""

    ingress: str
    number: int
    steps: list[StepOutcomes]
