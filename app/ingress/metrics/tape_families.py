"""The metric families of the tape, which an ingress with `--tape` has."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from prometheus_client.samples import Sample

from app.ingress.metrics.family import Family, Labels, gauge, value
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
