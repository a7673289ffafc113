"""The metric families of feedback, where clients have given any on answers of this node."""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.samples import Sample

from app.core.feedback.figures import FeedbackFigures, Scores
from app.ingress.metrics.family import Condition, Family, Labels, gauge

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
