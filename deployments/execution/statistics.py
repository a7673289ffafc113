"""The counters of one replica, in the units of Triton's statistics extension.

The replica owns the counters of what it executed, whoever called it. All methods run on the data-plane
loop. Durations are nanoseconds.
"""

import time
from collections import Counter

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import FailureReason
from app.core.latencies import Latencies


class Duration:
    """A count and a cumulated time."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Record `count` events that took `ns` together."""
        self.count += count
        self.ns += ns

    def message(self) -> pb.StatisticDuration:
        """As the protocol's message."""
        return pb.StatisticDuration(count=self.count, ns=self.ns)


class BatchStatistics:
    """Executions of one batch size."""

    __slots__ = ("compute_infer", "compute_input", "compute_output")

    def __init__(self) -> None:
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()


class Statistics:
    """Counters since the replica was loaded.

    `inference_count` counts batch items (rows), `execution_count` model executions, `releases` batches by why
    the dynamic batcher released them. `latencies` is there where summaries are wanted.
    """

    def __init__(self, name: str, version: str, latencies: Latencies | None = None) -> None:
        self.latencies = latencies
        self._name = name
        self._version = version
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.failures: Counter[FailureReason] = Counter()
        self.releases: Counter[str] = Counter()
        self.batches: dict[int, BatchStatistics] = {}

    def record_execution(
        self, rows: int, requests: int, input_ns: int, infer_ns: int, output_ns: int, nulls: int = 0
    ) -> None:
        """Record one model execution of `requests` requests with `rows` batch items together.

        `nulls` of the items belong to no request: a sequence batcher's empty slots, which Triton does not
        count as inferences.

        As in Triton, each request of a batch is charged the time of the whole batch.
        """
        self.execution_count += 1
        self.inference_count += rows - nulls
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.compute_input.add(input_ns * requests, requests)
        self.compute_infer.add(infer_ns * requests, requests)
        self.compute_output.add(output_ns * requests, requests)
        batch = self.batches.get(rows)
        if batch is None:
            batch = self.batches[rows] = BatchStatistics()
        batch.compute_input.add(input_ns)
        batch.compute_infer.add(infer_ns)
        batch.compute_output.add(output_ns)
        if self.latencies is not None:
            self.latencies.compute_input.add(input_ns, requests)
            self.latencies.compute_infer.add(infer_ns, requests)
            self.latencies.compute_output.add(output_ns, requests)

    def record_success(self, total_ns: int, queue_ns: int) -> None:
        """Record a request that was answered."""
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        if self.latencies is not None:
            self.latencies.request.add(total_ns)
            self.latencies.queue.add(queue_ns)

    def record_hit(self, lookup_ns: int) -> None:
        """Record a request that the response cache answers."""
        self.cache_hit.add(lookup_ns)
        self.last_inference_ms = time.time_ns() // 1_000_000
        if self.latencies is not None:
            self.latencies.cache_hit.add(lookup_ns)

    def record_miss(self, cache_ns: int) -> None:
        """Record a request that the response cache did not know; `cache_ns` are look-up and insertion."""
        self.cache_miss.add(cache_ns)
        if self.latencies is not None:
            self.latencies.cache_miss.add(cache_ns)

    def record_failure(self, total_ns: int, reason: FailureReason) -> None:
        """Record a request that was refused or failed."""
        self.fail.add(total_ns)
        self.failures[reason] += 1

    def message(self) -> pb.ModelStatistics:
        """As the protocol's message."""
        stats = pb.InferStatistics(
            success=self.success.message(),
            fail=self.fail.message(),
            queue=self.queue.message(),
            compute_input=self.compute_input.message(),
            compute_infer=self.compute_infer.message(),
            compute_output=self.compute_output.message(),
            cache_hit=self.cache_hit.message(),
            cache_miss=self.cache_miss.message(),
        )
        message = pb.ModelStatistics(
            name=self._name,
            version=self._version,
            last_inference=self.last_inference_ms,
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            inference_stats=stats,
        )
        for size, batch in sorted(self.batches.items()):
            message.batch_stats.add(
                batch_size=size,
                compute_input=batch.compute_input.message(),
                compute_infer=batch.compute_infer.message(),
                compute_output=batch.compute_output.message(),
            )
        return message
