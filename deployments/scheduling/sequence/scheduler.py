"""The sequence batcher: each sequence has a slot of one instance until it ends, or waits for one."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import Failure, unavailable
from app.core.failures import CANCELLED, INSTANCE_LOST
from app.core.inference import Sink
from app.core.observability.statistics import Statistics
from app.core.sequences import missing_start
from app.core.tensors import InferRequest, InferResponse, SequenceId
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.admission import Admission
from deployments.scheduling.alarm import Alarm
from deployments.scheduling.base import Scheduler
from deployments.scheduling.delays import StartThreshold
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.queue import QueueQuota
from deployments.scheduling.sequence.backlog import Backlog, lateness
from deployments.scheduling.sequence.controls import Controls
from deployments.scheduling.sequence.idle_timeouts import IdleTimeouts
from deployments.scheduling.sequence.requests import PaddingRequest, request_class
from deployments.scheduling.sequence.sequences import InstanceSlots, NextBatch, Sequence, SequenceRequest
from deployments.scheduling.sequence.slots import slots_factory
from deployments.scheduling.sequence.state import States
from deployments.scheduling.shape_key import make_shape_key

logger = logging.getLogger(__name__)


class SequenceScheduler(Scheduler):
    """Used when the configuration has `sequence_batching`.

    The queued requests of all sequences count against one quota. When a queued request is cancelled or
    expires, its sequence ends: later requests would meet a state that lacks it. Under overload only requests
    that start a sequence are refused or dropped; a sequence whose client has left may end (`IdleTimeouts`).

    Args:
        config: the complete configuration.
        directory: the model's, which holds `initial_state`.
        max_requests, max_bytes: bounds of the quota.
        admission: decides by the wait; without one, by deadlines only.
    """

    def __init__(
        self,
        statistics: Statistics,
        config: mc.ModelConfig,
        directory: Path,
        max_requests: int,
        max_bytes: int,
        admission: Admission | None = None,
    ) -> None:
        self._quota = QueueQuota(max_requests, max_bytes, admission)
        super().__init__(statistics, self._quota.admission)
        batching = config.sequence_batching
        self.request_class = request_class(batching)
        self._shape_key = make_shape_key(config)
        self._model = config.name
        self._iterative = batching.iterative_sequence
        self._controls = Controls(config)
        self._states = States(config, directory)
        self._make_slots = slots_factory(config, self._controls.uses_ready)
        self._idle_s = batching.max_sequence_idle_microseconds / 1e6
        self._idle = IdleTimeouts(self._idle_s, self._expire, lambda: len(self._backlog) > 0)
        self._slots: dict[InstanceThread, InstanceSlots] = {}
        self._closing: dict[InstanceSlots, tuple[InstanceThread, asyncio.Future[None]]] = {}
        self._live: dict[SequenceId, Sequence] = {}
        self._backlog = Backlog(self.admission, self._end_early)
        self._ordered = max_requests if batching.oldest.preserve_ordering else 0
        self._start_threshold = StartThreshold.for_sequences(direct=not batching.HasField("oldest"))
        self._numbers = itertools.count(1)
        self._alarm = Alarm(self.release)
        self._explain_until = 0.0
        """Until then, a request of an unknown sequence is told that an instance was lost."""

    @property
    def pending(self) -> int:
        return self._quota.requests

    @property
    def sequences(self) -> int:
        return len(self._live)

    @property
    def expected_wait_ns(self) -> int:
        return self._backlog.wait_ns(self._slots.values())

    @property
    def queue_age_ns(self) -> int:
        sequences = (sequence for newest in self._live.values() for sequence in newest.and_before())
        arrivals = [sequence.queued[0].arrival_ns for sequence in sequences if sequence.queued]
        return time.monotonic_ns() - min(arrivals) if arrivals else 0

    def add_instance(self, instance: InstanceThread) -> None:
        slots = self._slots[instance] = self._make_slots()
        slots.ended = instance.end_sequence
        if self._ordered:
            slots.order = ResponseOrder(self._ordered, self.release)
        super().add_instance(instance)

    def _remove(self, instance: InstanceThread, removed: asyncio.Future[None]) -> None:
        """Remove an instance once its sequences have ended, as in Triton."""
        slots = self._slots[instance]
        slots.closing = True
        self._closing[slots] = (instance, removed)
        self._remove_if_empty(slots)

    def _remove_if_empty(self, slots: InstanceSlots) -> None:
        if slots.empty:
            instance, removed = self._closing.pop(slots)
            del self._slots[instance]
            super()._remove(instance, removed)

    def suspend(self, instance: InstanceThread, wait: Callable[[], object]) -> None:
        """End the instance's sequences, whose state is lost unless it is implicit and kept here."""
        slots = self._slots.get(instance)
        if slots is not None:
            slots.suspended = True
            if not self._states:
                self._lose(slots)
        super().suspend(instance, wait)

    def _lose(self, slots: InstanceSlots) -> None:
        self._explain_until = time.monotonic() + self._idle_s
        for newest in list(self._live.values()):
            for sequence in newest.and_before():
                if sequence.slots is slots:
                    text = f"sequence {sequence.id} of model '{self._model}' has ended: {INSTANCE_LOST}"
                    self._end_early(sequence, unavailable(text).failure)

    def _available(self, instance: InstanceThread) -> None:
        slots = self._slots.get(instance)
        if slots is not None:
            slots.suspended = False
            self._admit()
        super()._available(instance)

    def schedule(self, request: QueuedRequest) -> None:
        """Queue a request behind the others of its sequence, or execute it at once.

        Raises:
            InferError: INVALID_ARG without an id, with a batch size other than 1, or without START for an
                unknown sequence; UNAVAILABLE when the quota, or the wait of a new sequence, is exceeded.
        """
        assert isinstance(request, SequenceRequest)
        sequence = self._find(request)
        if sequence is None:
            self._quota.check(request, self.expected_wait_ns)
        self._quota.acquire(request)
        if self._shape_key is not None:
            request.shapes = self._shape_key(request.infer)
        self._enqueue(request, sequence or self._begin(request.infer))
        if self._free:
            self.release()

    def cancel(self, request: QueuedRequest) -> None:
        assert isinstance(request, SequenceRequest)
        # Once it executes, the sequence has its effect and goes on.
        if not request.answered and request in request.sequence.queued:
            self._end_early(request.sequence, CANCELLED)
            self.release()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        for request in batch.requests:
            if isinstance(request, SequenceRequest):
                self._execution_finished(request)
        super().finished(instance, batch)

    def release(self) -> None:
        if self._start_threshold is not None and not self._may_start(self._start_threshold):
            return
        for instance in list(self._free):
            slots = self._slots.get(instance)
            if slots is None:  # it was removed when an expired sequence of another instance ended
                continue
            if slots.order is not None and slots.order.full:
                continue
            chosen = self._next_batch(slots)
            if chosen.rows:
                self._instances.start(instance).execute(self._batch(slots, chosen))
            elif chosen.wait_until_ns:
                self._alarm.set(chosen.wait_until_ns)

    def _may_start(self, threshold: StartThreshold) -> bool:
        """Whether the threshold has ever been reached."""
        queued = sum(slots.queued for slots in self._slots.values())
        if threshold.is_reached(queued, self._quota.requests - queued):
            self._start_threshold = None
        return self._start_threshold is None

    def _find(self, request: SequenceRequest) -> Sequence | None:
        """Return the sequence that a request continues; None for one that starts a sequence.

        Raises:
            InferError: see `submit`.
        """
        infer = request.infer
        request.check(self._model, self._iterative)
        if self._iterative:
            return None
        self._controls.check(infer.sequence_id, infer.id)
        sequence = self._live.get(infer.sequence_id)
        if sequence is not None and sequence.closed:
            sequence = None
        if infer.sequence_start:
            if sequence is not None:
                logger.warning("sequence %s of model '%s' is restarted", infer.sequence_id, self._model)
        elif sequence is None:
            cause = INSTANCE_LOST if time.monotonic() < self._explain_until else ""
            raise missing_start(self._model, infer.sequence_id, cause)
        return sequence

    def _begin(self, infer: InferRequest) -> Sequence:
        """Start a sequence in a slot or, when none is free, in the backlog."""
        sequence_id = next(self._numbers) if self._iterative else infer.sequence_id
        sequence = Sequence(sequence_id, before=self._live.get(sequence_id))
        self._live[sequence_id] = sequence
        if sequence.before is None:
            self._backlog.append(sequence)
            self._admit()
        return sequence

    def _admit(self) -> None:
        """Give free slots to the sequences of the backlog, the lowest slot of any instance first."""
        while self._backlog:
            vacant = [slots for slots in self._slots.values() if slots.lowest_vacant is not None]
            if not vacant:
                return
            if self._quota.is_limited:
                for late, failure in self._backlog.late():
                    self._end_early(late, failure)
            sequence = self._backlog.popleft()
            min(vacant, key=lambda slots: slots.lowest_vacant or 0).occupy(sequence)
            self._idle.restart(sequence)
            if sequence.queued and sequence.slots is not None:
                sequence.slots.enqueue(sequence.queued[0])

    def _enqueue(self, request: SequenceRequest, sequence: Sequence) -> None:
        request.client = infer = request.infer
        request.sequence = sequence
        sequence.closed = self._iterative or infer.sequence_end
        sequence.queued.append(request)
        if sequence.slots is None:
            self._backlog.limit_wait(sequence, request)
            return
        self._idle.restart(sequence)
        if sequence.running is None and len(sequence.queued) == 1:
            sequence.slots.enqueue(request)

    def _next_batch(self, slots: InstanceSlots) -> NextBatch:
        """Return what an instance executes next, after the sequences of expired requests have ended."""
        while True:
            chosen = slots.next_batch(time.monotonic_ns())
            if not self._quota.is_limited:
                return chosen
            ahead = max(slots.ahead - len(chosen.rows), 0)
            requests = [request for request in chosen.rows if request is not None]
            late = [(r, failure) for r in requests if (failure := lateness(r, ahead, self.admission))]
            if not late:
                return chosen
            for request, failure in late:
                self._end_early(request.sequence, failure)

    def _batch(self, slots: InstanceSlots, chosen: NextBatch) -> Batch:
        requests = [request for request in chosen.rows if request is not None]
        slots.dispatch(requests)
        if slots.ahead:
            self.admission.batch.add(len(requests))
        now = time.monotonic_ns()
        for request in requests:
            self._quota.release(request)
            if slots.order is not None and not request.dispatch_ns:
                slots.order.track(request)
            self._dispatch(request, now)
        if len(requests) == len(chosen.rows):
            return Batch(list(requests), len(requests), chosen.reason)
        state = self._states.initial()
        rows: list[QueuedRequest] = [
            request or PaddingRequest(requests[0], self._controls, state) for request in chosen.rows
        ]
        batch = Batch(rows, len(rows), chosen.reason)
        batch.nulls = len(rows) - len(requests)
        return batch

    def _dispatch(self, request: SequenceRequest, now_ns: int) -> None:
        sequence = request.sequence
        sequence.queued.popleft()
        sequence.running = request
        starts = request.begins
        request.dispatch_ns = request.dispatch_ns or now_ns
        request.prepare(self._controls, self._states, starts)

    def _execution_finished(self, request: SequenceRequest) -> None:
        """Let the sequence of an executed request continue, become idle or end."""
        sequence = request.sequence
        if not request.answered:
            if request.rescheduled:
                self._reschedule(request, sequence)
            elif self._states:
                request.sink = partial(self._deliver_after_execution, request, request.sink)
                return
        sequence.running = None
        if sequence.queued and sequence.slots is not None:
            sequence.slots.enqueue(sequence.queued[0])
        elif sequence.closed:
            self._end(sequence)
        elif request.cancelled:
            self._idle.mark_left(sequence)

    def _deliver_after_execution(self, request: SequenceRequest, sink: Sink, response: InferResponse) -> None:
        """Deliver a response that a decoupled model sends after its execution."""
        # Before the final one the next request would be given a state that lacks this request's.
        try:
            sink(response)
        finally:
            if response.final:
                self._execution_finished(request)
                self.release()

    def _reschedule(self, request: SequenceRequest, sequence: Sequence) -> None:
        if request.cancelled:
            request.fail(CANCELLED)
        elif request.may_reschedule:
            sequence.queued.appendleft(request)
            self._quota.acquire(request, requeued=True)

    def _end_early(self, sequence: Sequence, failure: Failure) -> None:
        """End a sequence: its queued requests fail, and later ones do not find it."""
        if sequence.slots is not None and sequence.queued:
            sequence.slots.remove(sequence.queued[0])
        for request in sequence.queued:
            self._quota.release(request)
            request.fail(failure)
        sequence.queued.clear()
        sequence.closed = True
        if sequence.running is None:
            self._end(sequence)

    def end_sequence(self, sequence_id: SequenceId) -> None:
        sequence = self._live.get(sequence_id)
        if sequence is not None:
            self._close(sequence)

    def _expire(self, sequence: Sequence) -> None:
        logger.info("sequence %s of model '%s' was idle for too long", sequence.id, self._model)
        self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        """End a sequence once the requests that it has are executed; later ones do not find it."""
        sequence.closed = True
        if sequence.running is None and not sequence.queued:
            self._end(sequence)
            self.release()

    def _end(self, sequence: Sequence) -> None:
        """Remove a sequence; its slot goes to the next one of the backlog."""
        if self._live.get(sequence.id) is sequence:
            if sequence.before is None:
                del self._live[sequence.id]
            else:
                self._live[sequence.id] = sequence.before
        self._idle.stop(sequence)
        sequence.cancel_expiry()
        slots = sequence.slots
        if slots is not None:
            self._backlog.record_vacated(sequence)
            slots.vacate(sequence)
            if slots.closing:
                self._remove_if_empty(slots)
        elif sequence.before is None:
            self._backlog.remove(sequence)
        following = sequence.unlink()
        if following is not None:
            self._backlog.append(following)
        if slots is not None or following is not None:
            self._admit()
