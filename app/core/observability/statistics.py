"""The counters of one model version in one process, and the report that a replica sends of them.

A replica counts what it executed, no matter which process called it; an ensemble is counted where it ran, and
reported by every process that ran it. Each field of the report declares how the values of several processes
are combined. A new metric is a field here and a row in `app/ingress/metrics/model_families.py`.
Everything runs on the data-plane loop. Durations are nanoseconds, as in Triton's statistics extension.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import add, or_
from time import time_ns
from typing import Annotated, Any, Final, Literal, TypeVar, get_type_hints

import msgspec
import numpy as np
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import FailureReason
from app.core.observability.durations import MANY, RequestDurations
from app.core.observability.latencies import Histogram, Latencies, Summary, first_response_histogram

K = TypeVar("K")
V = TypeVar("V", int, "BatchDurations", "ResponseDurations", Summary, Histogram)

MAX_RESPONSES: Final = 1024
"""A stream may have any number of responses; the statistics have not."""


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


_RECENT: Final = 16
"""Moving means give the last value a weight of 1/16."""

_OUTLIER: Final = 4
"""A duration counts for at most so many times the mean."""
_MILLISECOND: Final = 1e6
_MANY: Final = 6 * 512
"""Numbers of executions, six for each, that are counted at a time."""


class MovingMean:
    """A mean of the last values; the first value counts for nothing once there are others."""

    __slots__ = ("_count", "value")

    def __init__(self, value: float = 0.0) -> None:
        self.value = value
        self._count = 0

    def add(self, value: float) -> None:
        count, mean = self._count, self.value
        # A first execution often takes far longer than the others: frameworks prepare something then.
        if count > 1 and value > _OUTLIER * mean + _MILLISECOND:
            value = _OUTLIER * mean + _MILLISECOND  # one that was interrupted does not say much either
        if count < _RECENT:
            self._count = count = count + 1
        self.value = mean + (value - mean) / (count - 1 or 1)


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


class ResponseDurations(msgspec.Struct):
    """The responses of one number: the first ones of all requests, the second ones, and so on."""

    compute_infer: Duration = msgspec.field(default_factory=Duration)
    compute_output: Duration = msgspec.field(default_factory=Duration)
    success: Duration = msgspec.field(default_factory=Duration)
    fail: Duration = msgspec.field(default_factory=Duration)
    empty_response: Duration = msgspec.field(default_factory=Duration)
    cancel: Duration = msgspec.field(default_factory=Duration)

    def __add__(self, other: "ResponseDurations") -> "ResponseDurations":
        names = self.__struct_fields__
        return ResponseDurations(*(getattr(self, name) + getattr(other, name) for name in names))


ResponseOutcome = Literal["success", "fail", "empty_response", "cancel"]


def record_response(
    into: dict[int, ResponseDurations], number: int, outcome: ResponseOutcome, infer_ns: int, output_ns: int
) -> None:
    """Record one response as Triton does; those from number `MAX_RESPONSES` on are not recorded."""
    if number >= MAX_RESPONSES:
        return
    durations = into.get(number) or into.setdefault(number, ResponseDurations())
    getattr(durations, outcome).record(infer_ns + output_ns)
    if outcome == "cancel":
        return
    durations.compute_infer.record(infer_ns)
    if outcome == "success" or output_ns:
        durations.compute_output.record(output_ns)


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
    `FailureReason`, `releases` batches by why the dynamic batcher released them, `refusals` requests of an
    overloaded model by what limited their wait, `batches` executions by their rows, `restarts` unexpected
    ends of replicas, `responses` those that a backend times, by their number, `cache_failures` lookups and
    insertions of the response cache. `durations` are seconds of requests that succeeded: "request", "queue",
    "compute"; `fine_durations` counts whole requests by bucket of `FINE_S`. `processor_s` is the processor
    time of the replica's own processes, `memory` what they have in memory; 0 where it shares one with other
    models. `summaries` and `first_response` (milliseconds) depend on `--metrics-config`.
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
    refusals: Annotated[dict[str, int], add_values] = {}
    batches: Annotated[dict[int, BatchDurations], add_values] = {}
    pending: Annotated[int, add] = 0
    queue_age_ns: Annotated[int, max] = 0
    expected_wait_ns: Annotated[int, max] = 0
    has_cache: Annotated[bool, or_] = False
    cache_failures: Annotated[int, add] = 0
    restarts: Annotated[int, add] = 0
    durations: Annotated[dict[str, Histogram], add_values] = {}
    fine_durations: Annotated[dict[int, int], add_values] = {}
    summaries: Annotated[dict[str, Summary], add_values] = {}
    first_response: Annotated[Histogram | None, add_known] = None
    custom: Annotated[list[CustomFamily], add] = []
    responses: Annotated[dict[int, ResponseDurations], add_values] = {}
    processor_s: Annotated[float, add] = 0.0
    memory: Annotated[int, add] = 0


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


class Statistics:
    """Counts requests and executions.

    Attributes:
        counters: the values since the model was loaded; `report` brings those of successes and executions up
            to date.
        executions: where somebody wants them, the rows and nanoseconds of each execution; None elsewhere.
        times_first: whether `record_first_response` is to be told of the first response of each request.
    """

    executions: deque[tuple[int, int]] | None = None

    def __init__(
        self,
        latencies: Latencies | None = None,
        first_response: Histogram | None = None,
        decoupled: bool = False,
    ) -> None:
        """Without `latencies` no summaries are kept, without `first_response` no histogram.

        `decoupled` says that a request may have several responses, so that somebody else times the first one.
        """
        self.counters = ReplicaReport(first_response=first_response)
        self.times_first = decoupled and first_response is not None
        self._latencies = latencies
        self._durations = RequestDurations()
        self._new: list[int] = []  # what `record_execution` is given, one execution after the other

    @classmethod
    def for_model(cls, config: mc.ModelConfig, summaries: bool, histograms: bool) -> "Statistics":
        """Make the counters of a model, with the distributions that `--metrics-config` asks for."""
        return cls(
            Latencies() if summaries else None,
            first_response_histogram(config) if histograms else None,
            config.model_transaction_policy.decoupled,
        )

    def record_execution(
        self, rows: int, requests: int, input_ns: int, infer_ns: int, output_ns: int, padding: int = 0
    ) -> None:
        """Record one model execution of `requests` requests with `rows` batch items together.

        `padding` of the items are empty slots of a sequence batcher.
        """
        self.counters.last_inference_ns = time_ns()
        new = self._new
        new += rows, requests, input_ns, infer_ns, output_ns, padding
        if len(new) >= _MANY:
            self._count_executions()
        if self.executions is not None:
            self.executions.append((rows, input_ns + infer_ns + output_ns))
        if self._latencies is not None:
            self._latencies.compute_input.record(input_ns, requests)
            self._latencies.compute_infer.record(infer_ns, requests)
            self._latencies.compute_output.record(output_ns, requests)

    def _count_executions(self) -> None:
        rows, requests, *durations, padding = np.array(self._new, np.int64).reshape(-1, 6).T
        self._new.clear()
        counters = self.counters
        counters.execution_count += len(rows)
        counters.inference_count += int((rows - padding).sum())  # as in Triton, empty slots are no inferences
        # As in Triton, each request is charged the time of the whole batch.
        _add(counters, int(requests.sum()), [int(ns @ requests) for ns in durations])
        sizes, index = np.unique(rows, return_inverse=True)
        counts = np.bincount(index).tolist()
        sums = [np.bincount(index, ns).astype(np.int64).tolist() for ns in durations]
        for size, count, *sum_ns in zip(sizes.tolist(), counts, *sums, strict=True):
            _add(counters.batches.setdefault(size, BatchDurations()), count, sum_ns)

    def record_release(self, reason: str) -> None:
        """Record why the dynamic batcher released a batch."""
        releases = self.counters.releases
        releases[reason] = releases.get(reason, 0) + 1

    def record_success(self, total_ns: int, queue_ns: int) -> None:
        """Record a request that succeeded."""
        new = self._durations.new
        new.append(total_ns)
        new.append(queue_ns)
        if len(new) >= MANY:
            self._count_successes()
        if self._latencies is not None:
            self._latencies.request.record(total_ns)
            self._latencies.queue.record(queue_ns)

    @property
    def new_durations(self) -> list[int] | None:
        """The list to which `record_success` appends its arguments, if it does nothing more below `MANY`."""
        return self._durations.new if self._latencies is None else None

    @property
    def succeeded(self) -> int:
        """Requests that succeeded."""
        return self.counters.success.count + len(self._durations.new) // 2

    def _count_successes(self) -> None:
        firsts = None if self.times_first else self.counters.first_response
        count, total_ns, queue_ns = self._durations.sort(firsts)
        self.counters.success.record(total_ns, count)
        self.counters.queue.record(queue_ns, count)

    def record_failure(self, total_ns: int, reason: FailureReason) -> None:
        """Record a request that was refused, failed or was cancelled."""
        self.counters.fail.record(total_ns)
        failures = self.counters.failures
        failures[reason.value] = failures.get(reason.value, 0) + 1

    def record_hit(self, lookup_ns: int) -> None:
        """Record a request that the response cache answers."""
        self.counters.cache_hit.record(lookup_ns)
        self.counters.last_inference_ns = time_ns()
        if self._latencies is not None:
            self._latencies.cache_hit.record(lookup_ns)

    def record_miss(self, cache_ns: int) -> None:
        """Record a request that is not in the response cache; `cache_ns` covers look-up and insertion."""
        self.counters.cache_miss.record(cache_ns)
        if self._latencies is not None:
            self._latencies.cache_miss.record(cache_ns)

    def record_first_response(self, ns: int) -> None:
        """Record how long the first response of a decoupled model took, where that is wanted."""
        if self.times_first and self.counters.first_response is not None:
            self.counters.first_response.observe(ns / 1e6)

    def report(self) -> ReplicaReport:
        """Return all that was recorded; the report shares its parts with `counters`."""
        self._count_successes()
        self._count_executions()
        self.counters.durations = self._durations.histograms()
        self.counters.fine_durations = self._durations.fine()
        if self._latencies is None:
            return self.counters
        return msgspec.structs.replace(self.counters, summaries=self._latencies.report())


def _add(into: ReplicaReport | BatchDurations, count: int, ns: Sequence[int]) -> None:
    """Add the nanoseconds of so many events: of their input, inference and output."""
    input_ns, infer_ns, output_ns = ns
    into.compute_input.record(input_ns, count)
    into.compute_infer.record(infer_ns, count)
    into.compute_output.record(output_ns, count)
