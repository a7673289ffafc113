"""What this replica has done, for the account of costs."""

import uuid
from collections.abc import Callable

from app.core.cost.reports import CallUse, ReplicaWork
from deployments.replica.served_model import ServedModel


class WorkMeter:
    """Answers the `WORK` verb.

    Args:
        served: the model.
        calls: returns its own calls of other models since the last time.
    """

    def __init__(self, served: ServedModel, calls: Callable[[], list[CallUse]] = list) -> None:
        self._served, self._calls = served, calls
        self._replica = uuid.uuid4().hex

    def read(self) -> ReplicaWork:
        """Return what was done since the load."""
        counters = self._served.statistics.report()
        batches = counters.batches.values()
        parts = (
            part for each in batches for part in (each.compute_input, each.compute_infer, each.compute_output)
        )
        return ReplicaWork(
            self._replica,
            counters.success.count,
            counters.inference_count,
            sum(part.ns for part in parts) / 1e9,
            self._served.outstanding,
            self._calls(),
        )
