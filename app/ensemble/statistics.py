"""The counters of an ensemble, in the units of Triton's statistics extension: nanoseconds."""

import time
from collections import Counter

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import FailureReason


class EnsembleStatistics:
    """Counts requests of one ensemble that ran in this process.

    An ensemble has no queue and executes nothing itself: the time its steps took together is its
    compute_infer, their parts are in the counters of the models it called.
    """

    def __init__(self, name: str, version: int) -> None:
        self.message = pb.ModelStatistics(name=name, version=str(version))
        self.failures: Counter[str] = Counter()
        self._batches: dict[int, pb.InferBatchStatistics] = {}

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

    def record_failure(self, ns: int, reason: FailureReason) -> None:
        """Record a request that failed or was cancelled."""
        self.message.inference_stats.fail.count += 1
        self.message.inference_stats.fail.ns += ns
        self.failures[reason.value] += 1
