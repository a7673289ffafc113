"""The report of one process on one model version: what a replica sends when an ingress asks for statistics.

Ensembles report the same, from every process that ran them. Each field declares how the values of several
processes are combined. A new metric is a field here and a row in `app/ingress/metrics/model_families.py`.
"""

from collections.abc import Callable, Iterable
from operator import add, or_
from typing import Annotated, Any, Final, Literal, TypeVar, get_type_hints

import msgspec

from app.core.latencies import Histogram, Summary

K = TypeVar("K")
V = TypeVar("V", int, "BatchDurations", Summary)


class Duration(msgspec.Struct, gc=False):
    """A number of events, and the nanoseconds they took together."""

    count: int = 0
    ns: int = 0

    def record(self, ns: int, count: int = 1) -> None:
        """Record `count` events that took `ns` together."""
        self.count += count
        self.ns += ns

    def __add__(self, other: "Duration") -> "Duration":
        return Duration(self.count + other.count, self.ns + other.ns)


class BatchDurations(msgspec.Struct):
    """The executions of one batch size."""

    compute_input: Duration = msgspec.field(default_factory=Duration)
    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)

    def __add__(self, other: "BatchDurations") -> "BatchDurations":
        return BatchDurations(
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
        )


class CustomSample(msgspec.Struct, array_like=True):
    """One metric of a Python model.

    `value` is the sum of a histogram, whose upper bounds and counts (of those above too) follow. `set_ns` is
    when a gauge was set last, 0 for never.
    """

    labels: dict[str, str]
    value: float
    set_ns: int
    bounds: list[float]
    counts: list[int]


class CustomFamily(msgspec.Struct, array_like=True):
    """A metric family of a Python model, as `backends.python.api.metrics.snapshot` returns it."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
    description: str
    kind: Literal["counter", "gauge", "histogram"]
    samples: list[CustomSample]


def add_values(first: dict[K, V], second: dict[K, V]) -> dict[K, V]:
    """Join two mappings; values of the same key are added."""
    common = {key: first[key] + second[key] for key in first.keys() & second.keys()}
    return {**first, **second, **common}


def add_known(first: Histogram | None, second: Histogram | None) -> Histogram | None:
    """Add two histograms; None is a process that has none."""
    return first + second if first and second else first or second


class ReplicaReport(msgspec.Struct, omit_defaults=True):
    """Counters since the model version was loaded, and gauges of the moment.

    `inference_count` counts batch items (rows), `execution_count` model executions, `failures` requests by
    `FailureReason`, `releases` batches by why the dynamic batcher released them, `batches` executions by
    their rows. `summaries` and `first_response` (milliseconds) depend on `--metrics-config`.
    """

    last_inference_ns: Annotated[int, max] = 0
    inference_count: Annotated[int, add] = 0
    execution_count: Annotated[int, add] = 0
    success: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    fail: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    queue: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    compute_input: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    compute_infer: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    compute_output: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    cache_hit: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    cache_miss: Annotated[Duration, add] = msgspec.field(default_factory=Duration)
    failures: Annotated[dict[str, int], add_values] = {}
    releases: Annotated[dict[str, int], add_values] = {}
    batches: Annotated[dict[int, BatchDurations], add_values] = {}
    pending: Annotated[int, add] = 0
    queue_age_ns: Annotated[int, max] = 0
    has_cache: Annotated[bool, or_] = False
    summaries: Annotated[dict[str, Summary], add_values] = {}
    first_response: Annotated[Histogram | None, add_known] = None
    custom: Annotated[list[CustomFamily], add] = []


EnsembleReports = list[tuple[str, int, ReplicaReport]]
"""The ensembles that a process ran: name, version and counters of each."""

_REDUCERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(ReplicaReport, include_extras=True).items()
}


def merge(reports: Iterable[ReplicaReport]) -> ReplicaReport:
    """Combine the reports of several processes field by field; of none, all is zero."""
    merged = ReplicaReport()
    for report in reports:
        pairs = ((name, getattr(merged, name), getattr(report, name)) for name in _REDUCERS)
        merged = ReplicaReport(**{name: _REDUCERS[name](mine, theirs) for name, mine, theirs in pairs})
    return merged
