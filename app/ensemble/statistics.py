"""The counters of an ensemble, in the units of Triton's statistics extension: nanoseconds."""

import time
from collections import Counter
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import FailureReason
from app.core.latencies import Histogram, Latencies, distributions


class EnsembleStatistics:
    """Counts requests of one ensemble that ran in this process.

    An ensemble has no queue and executes nothing itself: the time its steps took together is its
    compute_infer, their parts are in the counters of the models it called.
    """

    def __init__(
        self,
        name: str,
        version: int,
        latencies: Latencies | None = None,
        first_responses: Histogram | None = None,
    ) -> None:
        """`latencies` and `first_responses` are there where summaries and histograms are wanted."""
        self.message = pb.ModelStatistics(name=name, version=str(version))
        self.failures: Counter[str] = Counter()
        self._batches: dict[int, pb.InferBatchStatistics] = {}
        self._latencies = latencies
        self._first_responses = first_responses

    def distributions(self) -> dict[str, Any]:
        """See `latencies.distributions`; its response cache shows itself when it is asked."""
        cached = self.message.inference_stats.cache_miss.count > 0
        return distributions(self._latencies, self._first_responses, cached)

    def record_first_response(self, ns: int) -> None:
        """Record how long a decoupled ensemble's first response took."""
        if self._first_responses is not None:
            self._first_responses.add(ns)

    def record_success(self, rows: int, ns: int) -> None:
        """Record an answered request of `rows` batch items."""
        message = self.message
        message.last_inference = time.time_ns() // 1_000_000
        message.inference_count += rows
        message.execution_count += 1
        batch = self._batches.get(rows)
        if batch is None:
            batch = self._batches[rows] = message.batch_stats.add(batch_size=rows)
        stats = message.inference_stats
        for duration, took in ((stats.success, ns), (stats.compute_infer, ns), (batch.compute_infer, ns)):
            duration.count += 1
            duration.ns += took
        for duration in (stats.queue, stats.compute_input, stats.compute_output):
            duration.count += 1
        batch.compute_input.count += 1
        batch.compute_output.count += 1
        if self._latencies is not None:
            of = self._latencies
            for summary, took in ((of.request, ns), (of.queue, 0), (of.compute_infer, ns)):
                summary.add(took)
            of.compute_input.add(0)
            of.compute_output.add(0)

    def record_hit(self, ns: int, lookup_ns: int) -> None:
        """Record a request that the response cache answers; it executes nothing."""
        self.message.last_inference = time.time_ns() // 1_000_000
        stats = self.message.inference_stats
        for duration, took in ((stats.success, ns), (stats.queue, 0), (stats.cache_hit, lookup_ns)):
            duration.count += 1
            duration.ns += took
        if self._latencies is not None:
            self._latencies.cache_hit.add(lookup_ns)
            self._latencies.queue.add(0)

    def record_miss(self, cache_ns: int) -> None:
        """Record a request that the response cache did not know; `cache_ns` are look-up and insertion."""
        self.message.inference_stats.cache_miss.count += 1
        self.message.inference_stats.cache_miss.ns += cache_ns
        if self._latencies is not None:
            self._latencies.cache_miss.add(cache_ns)

    def record_failure(self, ns: int, reason: FailureReason) -> None:
        """Record a request that failed or was cancelled."""
        self.message.inference_stats.fail.count += 1
        self.message.inference_stats.fail.ns += ns
        self.failures[reason.value] += 1
