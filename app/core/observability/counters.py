"""The counters of a version as servers tell them to consoles: of all its replicas, since it was loaded."""

from time import time

import msgspec

from app.core.errors import FailureReason
from app.core.observability.statistics import ReplicaReport


class VersionCounters(msgspec.Struct, frozen=True):
    """Counters of a version since it was loaded, over all replicas.

    Attributes:
        at: when its replicas were asked, in Unix seconds.
        ok, failed: requests; `cancelled` and `rejected` are parts of those that failed.
        queue_ns, compute_ns: of those that succeeded.
        rows, executions: what was executed.
        pending: requests that wait now.
        restarts: unexpected ends of replicas.
        memory: bytes of replicas with processes of their own; 0 where models share one.
        buckets: requests that succeeded, by the place of their duration's upper bound in `bounds_s`; the
            place after the last one is of longer ones.
    """

    at: float
    ok: int = 0
    failed: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    rows: int = 0
    executions: int = 0
    pending: int = 0
    restarts: int = 0
    memory: int = 0
    cancelled: int = 0
    rejected: int = 0
    buckets: dict[int, int] = {}

    @classmethod
    def of(cls, report: ReplicaReport) -> "VersionCounters":
        """Return what replicas that were asked just now have counted."""
        return cls(
            at=time(),
            ok=report.success.count,
            failed=report.fail.count,
            queue_ns=report.queue.ns,
            compute_ns=report.compute_input.ns + report.compute_infer.ns + report.compute_output.ns,
            rows=report.inference_count,
            executions=report.execution_count,
            pending=report.pending,
            restarts=report.restarts,
            memory=report.memory,
            cancelled=report.failures.get(FailureReason.CANCELED.value, 0),
            rejected=report.failures.get(FailureReason.REJECTED.value, 0),
            buckets=report.fine_durations,
        )
