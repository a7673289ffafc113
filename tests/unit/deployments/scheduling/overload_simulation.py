"""A model under overload, by a clock of its own: arrivals, executions and clients that leave are events."""

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

from app.core.errors import InferError
from app.core.tensors import InferRequest, Tensor
from deployments.execution.queued_request import QueuedRequest, ResponseQueue
from deployments.scheduling.admission import Admission
from deployments.scheduling.queue import RequestQueue
from tests.unit.scheduling_fakes import Answers

S = 1_000_000_000
"""Nanoseconds."""
MANY = 1 << 30


class Clients(NamedTuple):
    """Clients that all wait `wait_s`, and say so in their requests if they set a deadline or a `timeout`."""

    wait_s: float = 1.0
    deadline: bool = False
    timeout: bool = False


SILENT = Clients()


class Outcome(NamedTuple):
    """Requests by what became of them; `in_time` were answered before the client left."""

    sent: int
    in_time: int
    refused: int
    longest_queue: int


def _plain_queue(admission: Admission) -> RequestQueue:
    return RequestQueue(MANY, MANY, admission)


class Simulation:
    """One model with `instances`, which execute up to `batch` requests in `execution_s`, and an open loop.

    Attributes:
        now: nanoseconds.
        waiting: queued requests, and those that were dropped from the queue.
    """

    def __init__(
        self,
        execution_s: float = 0.02,
        instances: int = 1,
        batch: int = 1,
        learns: bool = True,
        make_queue: Callable[[Admission], RequestQueue] = _plain_queue,
    ) -> None:
        self.now = 10 * S
        self.admission = Admission(batch, learns=learns, clock=lambda: self.now)
        self.admission.instances = instances
        self.capacity = instances * batch / execution_s
        self._execution_ns = execution_s * S
        self._batch = batch
        self._free = instances
        self._queue = make_queue(self.admission)
        self._random = random.Random(7)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._answers = Answers()
        self._executing: set[QueuedRequest] = set()
        self.waiting: dict[QueuedRequest, None] = {}
        self.answered: list[QueuedRequest] = []
        self.left: list[QueuedRequest] = []
        self.sent = self.refused = self.longest_queue = 0

    def run(self, load: float, seconds: float, clients: Clients = SILENT) -> Outcome:
        """Offer `load` times the capacity for `seconds`; return the outcome of these requests."""
        before = self.sent, len(self.answered), self.refused
        self.longest_queue = 0
        end = self.now + int(seconds * S)
        rate = load * self.capacity
        self._at(self._random.expovariate(rate), lambda: self._arrive(rate, end, clients))
        while self._events and self._events[0][0] <= end:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        self.now = end
        counts = self.sent, len(self.answered), self.refused
        sent, in_time, refused = (after - was for after, was in zip(counts, before, strict=True))
        return Outcome(sent, in_time, refused, self.longest_queue)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + int(seconds * S), next(self._numbers), happen))

    def _arrive(self, rate: float, end: int, clients: Clients) -> None:
        if self.now > end:  # of an earlier run
            return
        self._at(self._random.expovariate(rate), lambda: self._arrive(rate, end, clients))
        self.sent += 1
        request = self._request(clients)
        self._at(clients.wait_s, lambda: self.leave(request))
        try:
            self._queue.append(request)
            self.waiting[request] = None
        except InferError as error:
            assert error.retry_after_s > 0
            self.refused += 1
            request.fail(error.failure)
        self._start()

    def _request(self, clients: Clients) -> QueuedRequest:
        tensor = Tensor("INPUT0", "UINT8", (1, 1), b"1")
        timeout_us = int(clients.wait_s * 1e6) if clients.timeout else 0
        deadline = self.now / S + clients.wait_s if clients.deadline else 0.0
        infer = InferRequest("m", "", (tensor,), id=str(self.sent), timeout_us=timeout_us, deadline=deadline)
        request = QueuedRequest(infer, lambda _: None, cast(ResponseQueue, self._answers), 1)
        request.arrival_ns = self.now
        return request

    def leave(self, request: QueuedRequest) -> None:
        """Let the client of a request leave."""
        if request.answered:
            return
        self.left.append(request)
        self.admission.record_departure(request, len(self.answered))
        request.answered = True
        if request not in self._executing:
            del self.waiting[request]
            self._queue.cancel(request)

    def _start(self) -> None:
        while self._free and self._queue.tidy(self._batch):
            batch = [self._queue.popleft() for _ in range(min(self._batch, self._queue.requests))]
            if self._queue.requests:
                self.admission.batch.add(len(batch))
            self._free -= 1
            self._executing.update(batch)
            for request in batch:
                del self.waiting[request]
            took_ns = int(self._execution_ns * self._random.uniform(0.9, 1.1))
            self._at(took_ns / S, partial(self._finish, batch, took_ns))
        self.longest_queue = max(self.longest_queue, self._queue.requests)

    def _finish(self, batch: list[QueuedRequest], took_ns: int) -> None:
        self._free += 1
        self._executing.difference_update(batch)
        self.admission.execution_ns.add(took_ns)
        for request in batch:
            if not request.answered:
                request.answered = True
                self.answered.append(request)
        self._start()
