"""What every scheduler does with instances, and the default scheduler."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from app.core.errors import unavailable
from app.core.failures import CANCELLED
from app.core.observability.statistics import Statistics
from app.core.tensors import SequenceId
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.admission import Admission
from deployments.scheduling.instances import Instances
from deployments.scheduling.queue import RequestQueue


class Scheduler(ABC):
    """Decides which requests execute together, and when. All methods run on the data-plane loop.

    Attributes:
        request_class: the class of the requests that `submit` accepts.
        admission: decides which requests may queue.
    """

    request_class: type[QueuedRequest] = QueuedRequest

    def __init__(self, statistics: Statistics, admission: Admission) -> None:
        self.admission = admission
        self._statistics = statistics
        self._instances = Instances(self._available)
        self._free = self._instances.free

    @property
    @abstractmethod
    def pending(self) -> int:
        """Requests queued and not yet executing."""

    @property
    def queue_age_ns(self) -> int:
        """Age in nanoseconds of the oldest queued request; 0 when none is queued."""
        return 0

    @property
    def sequences(self) -> int:
        """Sequences that have not ended; 0 for a scheduler without any."""
        return 0

    def end_sequence(self, sequence_id: SequenceId) -> None:  # noqa: B027  (most schedulers have none)
        """End a sequence that was started anew, or has ended, at another replica; unknown ones are none."""

    @property
    def expected_wait_ns(self) -> int:
        """How long a request that arrives now is expected to wait, in nanoseconds."""
        return self.admission.wait_ns(self.pending)

    @abstractmethod
    def schedule(self, request: QueuedRequest) -> None:
        """Queue a request, or execute it at once.

        Raises:
            InferError: UNAVAILABLE when the queue is full, or the wait too long.
        """

    @abstractmethod
    def cancel(self, request: QueuedRequest) -> None:
        """Handle the cancellation of a queued or executing request, whose `cancelled` is set already."""

    @abstractmethod
    def release(self) -> None:
        """Give batches to free instances as far as the policy allows."""

    def begins(self, batch: Batch) -> None:  # noqa: B027  (most schedulers have nothing to add)
        """Add what is queued to a batch that had to wait and executes now, while it has room."""

    def execute_together(self, requests: list[QueuedRequest]) -> None:
        """Execute requests as one batch on a free instance, whatever the policy.

        Raises:
            InferError: UNAVAILABLE when no instance is free.
        """
        if not self._free:
            raise unavailable("no instance of the model is free")
        for request in requests:
            request.dispatch_ns = time.monotonic_ns()
        self._instances.start().execute(Batch(requests, sum(request.rows for request in requests)))

    def close(self) -> None:  # noqa: B027  (most schedulers have nothing to do)
        """Release what the scheduler holds. Called last, when the instances have stopped, not on the loop."""

    def add_instance(self, instance: InstanceThread) -> None:
        """Offer a loaded instance for execution."""
        self.admission.instances += 1
        self._instances.add(instance)
        self._available(instance)

    def remove_instance(self, instance: InstanceThread) -> asyncio.Future[None]:
        """Give an instance nothing new; the future is done when the instance has nothing more to do."""
        removed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.admission.instances -= 1
        self._remove(instance, removed)
        return removed

    def _remove(self, instance: InstanceThread, removed: asyncio.Future[None]) -> None:
        self._instances.remove(instance, removed)

    def suspend(self, instance: InstanceThread, wait: Callable[[], object]) -> None:
        """Give an instance nothing after its batch until `wait` has returned on its thread."""
        self._instances.suspend(instance, wait)

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        """Count a finished batch, take its instance back and release the next batch."""
        served = len(batch.requests)
        for request in batch.requests:
            if request.failed:
                served -= 1
        start_ns, end_ns = batch.start_ns, batch.end_ns
        if served:  # as in Triton, an execution that failed for every request counts as failures only
            began_ns, ended_ns = batch.infer_start_ns, batch.infer_end_ns
            self._statistics.record_execution(
                batch.rows, served, began_ns - start_ns, ended_ns - began_ns, end_ns - ended_ns, batch.nulls
            )
        self.admission.execution_ns.add(end_ns - start_ns)
        self._take_back(instance)
        self.release()

    def _take_back(self, instance: InstanceThread) -> None:
        self._instances.end(instance)

    def _available(self, instance: InstanceThread) -> None:
        """Use an instance that is new, or has recovered."""
        self.release()


class DirectScheduler(Scheduler):
    """Executes each request alone, in order of arrival: used when the configuration names no scheduler."""

    def __init__(self, statistics: Statistics, queue: RequestQueue) -> None:
        super().__init__(statistics, queue.admission)
        self._queue = queue

    @property
    def pending(self) -> int:
        return self._queue.requests

    @property
    def queue_age_ns(self) -> int:
        oldest_ns = self._queue.oldest_ns
        return time.monotonic_ns() - oldest_ns if oldest_ns else 0

    def schedule(self, request: QueuedRequest) -> None:
        deadline = request.infer.deadline
        expired = deadline and time.monotonic() > deadline  # the queue fails such a request
        if self._free and not self._queue.requests and not expired:
            self._execute(request)
            return
        self._queue.append(request)
        if self._free:
            self.release()

    def cancel(self, request: QueuedRequest) -> None:
        if not request.dispatch_ns and not request.answered:
            request.fail(CANCELLED)
            self._queue.cancel(request)

    def release(self) -> None:
        queue = self._queue
        while self._free and queue.requests and queue.tidy(1):
            self._execute(queue.popleft())

    def _execute(self, request: QueuedRequest) -> None:
        request.dispatch_ns = time.monotonic_ns()
        self._instances.start().execute(Batch([request], request.rows))
