"""The metric families of the tape, and of feedback that clients of this node have given on what it has."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

from app.core.feedback.figures import FeedbackFigures, Scores
from app.ingress.metrics.family import Condition, Family, Labels, gauge, value
from app.tape.counts import TapeCounts


class TapeReading(NamedTuple):
    """What was recorded, and the age of the oldest row that waits for the disk, in seconds."""

    counts: TapeCounts
    lag_s: float


def _by_reason(name: str, labels: Labels, source: TapeReading) -> Iterator[Sample]:
    """Make a sample for each reason."""
    for reason, count in source.counts.dropped.items():
        yield Sample(name, {**labels, "reason": reason}, count)


TAPE: Final[tuple[Family[TapeReading], ...]] = (
    Family(
        "nereid_tape_rows",
        "counter",
        "Requests that were recorded with their responses, of this ingress replica",
        value(lambda read: read.counts.rows),
    ),
    Family("nereid_tape_bytes", "counter", "Bytes recorded", value(lambda read: read.counts.nbytes)),
    Family(
        "nereid_tape_dropped",
        "counter",
        "Requests that were to be recorded and are not, by reason: rate_limit, queue, disk, space, sequence, "
        "fault",
        _by_reason,
    ),
    gauge(
        "nereid_tape_lag_seconds",
        "Age of the request that has waited for longest to be written, in seconds",
        lambda read: read.lag_s,
    ),
)


_GIVEN: Final = Condition[FeedbackFigures]("models with feedback", lambda _: True)
_SCORED: Final = Condition[Scores]("versions with feedback", lambda scores: scores.number > 0)


def _outcomes(name: str, labels: Labels, figures: FeedbackFigures) -> Iterator[Sample]:
    counts = {
        "scored": sum(scores.number for scores in figures.versions.values()),
        "again": figures.again,
        "unknown": figures.unknown,
        "unusable": sum(figures.unusable.values()),
    }
    for outcome, count in counts.items():
        yield Sample(name, dict(sorted({**labels, "outcome": outcome}.items())), count)


def _bounds(name: str, labels: Labels, scores: Scores) -> Iterator[Sample]:
    mean = scores.mean
    if mean is not None:
        for bound, number in (("mean", mean.value), ("low", mean.low), ("high", mean.high)):
            yield Sample(name, dict(sorted({**labels, "bound": bound}.items())), number)


FEEDBACK: Final[tuple[Family[FeedbackFigures], ...]] = (
    Family(
        "nereid_feedback_records",
        "counter",
        "Records of feedback that were joined with the tape of this node, by outcome: scored, again (of an "
        "answer that had one), unknown (no such request on the tape), unusable",
        _outcomes,
        only=_GIVEN,
    ),
    gauge(
        "nereid_feedback_waiting",
        "Records of feedback whose request is looked for on the tape",
        lambda figures: figures.waiting,
        _GIVEN,
    ),
)
SCORES: Final[tuple[Family[Scores], ...]] = (
    gauge(
        "nereid_feedback_scores",
        "Requests that the scores of a version stand for, each by its weight on the tape",
        lambda scores: scores.weight,
        _SCORED,
    ),
    gauge(
        "nereid_feedback_score_sum",
        "Sum of the scores of these requests; by nereid_feedback_scores, the mean over nodes",
        lambda scores: scores.total,
        _SCORED,
    ),
    Family(
        "nereid_feedback_score",
        "gauge",
        "Accuracy or mean score of a version, with the bounds of its 95 % interval",
        _bounds,
        only=_SCORED,
    ),
)


def by_model(figures: Mapping[str, FeedbackFigures]) -> list[tuple[Labels, FeedbackFigures]]:
    """Return the figures of each model with its label."""
    return [({"model": name}, found) for name, found in sorted(figures.items())]


def scored(figures: Mapping[str, FeedbackFigures]) -> Iterator[tuple[Labels, Scores]]:
    """Yield the scores of each version with its labels."""
    for model, found in sorted(figures.items()):
        for version, scores in found.versions.items():
            yield {"model": model, "version": version}, scores
