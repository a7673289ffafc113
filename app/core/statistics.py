"""The live counters of one model version in one process, in the units of Triton's statistics extension.

A replica counts what it executed, no matter which process called it; an ensemble is counted where it ran.
Everything runs on the data-plane loop. Durations are nanoseconds.
"""

from time import time_ns

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import FailureReason
from app.core.latencies import Histogram, Latencies, first_response_histogram
from app.core.replica_report import BatchDurations, ReplicaReport


class Statistics:
    """Counts requests and executions; `counters` are the values since the model was loaded."""

    def __init__(self, latencies: Latencies | None = None, first_response: Histogram | None = None) -> None:
        """Without `latencies` no summaries are kept, without `first_response` no histogram."""
        self.counters = ReplicaReport(first_response=first_response)
        self._latencies = latencies

    @classmethod
    def for_model(cls, config: mc.ModelConfig, summaries: bool, histograms: bool) -> "Statistics":
        """Make the counters of a model, with the distributions that `--metrics-config` asks for."""
        timed = histograms and config.model_transaction_policy.decoupled
        return cls(Latencies() if summaries else None, first_response_histogram(config) if timed else None)

    def record_execution(
        self, rows: int, requests: int, input_ns: int, infer_ns: int, output_ns: int, padding: int = 0
    ) -> None:
        """Record one model execution of `requests` requests with `rows` batch items together.

        `padding` of the items are empty slots of a sequence batcher.
        """
        counters = self.counters
        counters.execution_count += 1
        counters.inference_count += rows - padding  # as in Triton, empty slots are no inferences
        counters.last_inference_ns = time_ns()
        # As in Triton, each request is charged the time of the whole batch.
        counters.compute_input.record(input_ns * requests, requests)
        counters.compute_infer.record(infer_ns * requests, requests)
        counters.compute_output.record(output_ns * requests, requests)
        batch = counters.batches.get(rows)
        if batch is None:
            batch = counters.batches[rows] = BatchDurations()
        batch.compute_input.record(input_ns)
        batch.compute_infer.record(infer_ns)
        batch.compute_output.record(output_ns)
        if self._latencies is not None:
            self._latencies.compute_input.record(input_ns, requests)
            self._latencies.compute_infer.record(infer_ns, requests)
            self._latencies.compute_output.record(output_ns, requests)

    def record_release(self, reason: str) -> None:
        """Record why the dynamic batcher released a batch."""
        releases = self.counters.releases
        releases[reason] = releases.get(reason, 0) + 1

    def record_success(self, total_ns: int, queue_ns: int) -> None:
        """Record a request that succeeded."""
        self.counters.success.record(total_ns)
        self.counters.queue.record(queue_ns)
        if self._latencies is not None:
            self._latencies.request.record(total_ns)
            self._latencies.queue.record(queue_ns)

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
        if self.counters.first_response is not None:
            self.counters.first_response.observe(ns / 1e6)

    def report(self) -> ReplicaReport:
        """Return all that was recorded; the report shares its parts with `counters`."""
        if self._latencies is None:
            return self.counters
        return msgspec.structs.replace(self.counters, summaries=self._latencies.report())
