"""The metric families of rollouts that are on, for each of their two versions."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

from app.core.observability.latencies import Histogram
from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.split import WHOLE, Split
from app.core.rollout.statistics import microseconds
from app.ingress.metrics.family import Condition, Family, Labels, gauge, histogram, value

_BOUNDS: Final = range(4 * 7, 4 * 26 + 1, 4)
"""The latency buckets whose bounds the histogram has: 128 us, twice that, and so on to 67 s."""


class SideReading(NamedTuple):
    """One of the two versions of a rollout; `mirror` is None for the stable one."""

    split: Split
    weight: int
    outcomes: VersionOutcomes
    mirror: MirrorOutcomes | None


def side_readings(split: Split, outcomes: Outcomes) -> Iterator[tuple[Labels, SideReading]]:
    """Return the two versions of a rollout, each with the labels `role` and `version`."""
    stable = SideReading(split, WHOLE - split.weight, outcomes.stable, None)
    candidate = SideReading(split, split.weight, outcomes.candidate, outcomes.mirror)
    yield {"role": "stable", "version": str(split.stable)}, stable
    yield {"role": "candidate", "version": str(split.candidate)}, candidate


def _states(name: str, labels: Labels, side: SideReading) -> Iterable[Sample]:
    yield Sample(name, dict(sorted({**labels, "state": side.split.state}.items())), 1)


def _by_outcome(name: str, labels: Labels, side: SideReading) -> Iterator[Sample]:
    for outcome in ("ok", "failed", "refused", "cancelled"):
        yield Sample(name, {"outcome": outcome, **labels}, getattr(side.outcomes, outcome))


def _mirrored(name: str, labels: Labels, side: SideReading) -> Iterator[Sample]:
    if side.mirror is not None:
        for outcome in ("compared", "differing", "disagreeing", "near_ties", "failed", "skipped"):
            yield Sample(name, {"outcome": outcome, **labels}, getattr(side.mirror, outcome))


def _latency(side: SideReading) -> Histogram:
    counts = [0] * (len(_BOUNDS) + 1)
    seconds = 0.0
    for bucket, count in side.outcomes.latencies.items():
        counts[min(max(0, -(-(bucket - _BOUNDS.start) // _BOUNDS.step)), len(_BOUNDS))] += count
        seconds += count * microseconds(bucket - 0.5) / 1e6
    return Histogram(tuple(2 ** (bound // 4) / 1e6 for bound in _BOUNDS), counts, seconds)


_ON: Final = Condition[SideReading]("models in a rollout", lambda _: True)
ROLLOUTS: Final[tuple[Family[SideReading], ...]] = (
    gauge(
        "nereid_rollout_weight",
        "Share of the requests without a version that the version gets, 0 to 1",
        lambda side: side.weight / WHOLE,
        _ON,
    ),
    Family(
        "nereid_rollout_state", "gauge", "The state of the rollout, as a label; always 1", _states, only=_ON
    ),
    Family(
        "nereid_rollout_requests",
        "counter",
        "Requests that the version was asked, by outcome: ok, failed, refused as invalid, or cancelled",
        _by_outcome,
        only=_ON,
    ),
    Family(
        "nereid_rollout_rescued",
        "counter",
        "Requests that the version failed and the stable version then answered",
        value(lambda side: side.outcomes.rescued),
        only=_ON,
    ),
    Family(
        "nereid_rollout_latency_seconds",
        "histogram",
        "Duration of answered requests, in seconds; the sum is estimated from the buckets",
        histogram(_latency),
        only=_ON,
    ),
    Family(
        "nereid_rollout_mirrored",
        "counter",
        "Requests of the stable version that were repeated at the candidate, by outcome",
        _mirrored,
        only=_ON,
    ),
)
"""The families of a rollout."""
