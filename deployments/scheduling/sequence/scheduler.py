"""The sequence batcher: each sequence has a place at one instance for its life, or waits for one."""

import asyncio
import itertools
import logging
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Final, cast

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure, FailureReason, invalid_arg
from app.core.inference import Sink
from app.core.sequences import missing_start
from app.core.statistics import Statistics
from app.core.tensors import InferRequest, InferResponse, SequenceId
from deployments.execution.instance_thread import Batch, InstanceThread
from deployments.execution.queued_request import CANCELLED, QueuedRequest
from deployments.scheduling.base import Scheduler
from deployments.scheduling.delays import StartThreshold
from deployments.scheduling.dynamic.ordering import ResponseOrder
from deployments.scheduling.queue import TIMEOUT, RequestQueue
from deployments.scheduling.sequence.controls import Controls
from deployments.scheduling.sequence.idle_timeouts import Idleness
from deployments.scheduling.sequence.quota import QueueQuota
from deployments.scheduling.sequence.requests import PaddingRequest, Sequence, SequenceRequest
from deployments.scheduling.sequence.slots import Choice, InstanceSlots, lanes
from deployments.scheduling.sequence.state import States

logger = logging.getLogger(__name__)

EXPIRED: Final = Failure(
    ErrorCode.UNAVAILABLE, "timeout of the corresponding sequence has been expired", FailureReason.REJECTED
)


class SequenceScheduler(Scheduler):
    """Used when the configuration has `sequence_batching`; takes `SequenceRequest`s.

    Every queued request of every sequence counts against one bound. A sequence of which a queued request is
    cancelled or too late ends there: what follows would meet a state that lacks it.

    Args:
        config: the complete configuration.
        directory: the model's, which holds `initial_state`.
        max_requests, max_bytes: bounds of what is queued.
    """

    def __init__(
        self,
        statistics: Statistics,
        config: mc.ModelConfig,
        directory: Path,
        max_requests: int,
        max_bytes: int,
    ) -> None:
        # What is queued here is queued by sequence: the queue of the base class stays empty.
        super().__init__(statistics, RequestQueue(max_requests, max_bytes))
        batching = config.sequence_batching
        self._model = config.name
        self._iterative = batching.iterative_sequence
        self._controls = Controls(config)
        self._states = States(config, directory)
        self._make_lane = lanes(config, self._controls.uses_ready)
        self._idleness = Idleness(batching.max_sequence_idle_microseconds / 1e6, self._expire)
        self._lanes: dict[InstanceThread, InstanceSlots] = {}
        self._closing: dict[InstanceSlots, tuple[InstanceThread, asyncio.Future[None]]] = {}
        self._live: dict[SequenceId, Sequence] = {}
        self._backlog: deque[Sequence] = deque()
        self._room = QueueQuota(max_requests, max_bytes)
        self._ordered = max_requests if batching.oldest.preserve_ordering else 0
        self._hold = StartThreshold.of_sequences(direct=not batching.HasField("oldest"))
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        return self._room.requests

    def add_instance(self, instance: InstanceThread) -> None:
        lane = self._lanes[instance] = self._make_lane()
        lane.ended = instance.end_sequence
        if self._ordered:
            lane.order = ResponseOrder(self._ordered, self.release)
        self._admit()
        super().add_instance(instance)

    def _withdraw(self, instance: InstanceThread, gone: asyncio.Future[None]) -> None:
        """An instance goes when the sequences that live there have ended, as in Triton."""
        lane = self._lanes[instance]
        lane.closing = True
        self._closing[lane] = (instance, gone)
        self._leave_if_empty(lane)

    def _leave_if_empty(self, lane: InstanceSlots) -> None:
        if lane.empty:
            instance, gone = self._closing.pop(lane)
            del self._lanes[instance]
            super()._withdraw(instance, gone)

    def submit(self, pending: QueuedRequest) -> None:
        """Queue a request behind its sequence's others, or execute it at once.

        Raises:
            InferError: INVALID_ARG without an id, with a batch size other than 1, or without START where no
                such sequence lives; UNAVAILABLE when too much is queued.
        """
        turn = cast(SequenceRequest, pending)
        sequence = self._find(turn)
        self._room.enter(turn)
        self._enqueue(turn, sequence or self._begin(turn.infer))
        if self._free:
            self.release()

    def cancel(self, pending: QueuedRequest) -> None:
        sequence = cast(SequenceRequest, pending).sequence
        if not pending.answered and pending in sequence.turns:  # one that was executed changes nothing more
            self._abandon(sequence, CANCELLED)
            self.release()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        for pending in batch.requests:
            if isinstance(pending, SequenceRequest):
                self._settle(pending)
        super().finished(instance, batch)

    def release(self) -> None:
        if self._hold is not None and not self._released(self._hold):
            return
        wait_until: list[int] = []
        for instance in list(self._free):
            lane = self._lanes.get(instance)
            if lane is None:  # it left when a late sequence of another lane was abandoned
                continue
            if lane.order is not None and lane.order.full:
                continue
            choice = self._choose(lane)
            if choice.rows:
                self._free.remove(instance)
                instance.execute(self._batch(lane, choice))
            elif choice.wait_until_ns:
                wait_until.append(choice.wait_until_ns)
        if wait_until:
            self._wait(min(wait_until))

    def _released(self, hold: StartThreshold) -> bool:
        """Whether enough is queued to begin; once it is, it is for good."""
        queued = sum(lane.queued for lane in self._lanes.values())
        if hold.lifted(queued, self._room.requests - queued):
            self._hold = None
        return self._hold is None

    def _find(self, turn: SequenceRequest) -> Sequence | None:
        """The sequence a request belongs to; None for one that it starts."""
        infer = turn.infer
        if not (self._iterative or infer.sequence_id):
            raise invalid_arg(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty"
                " correlation ID"
            )
        if turn.rows != 1:
            raise invalid_arg(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements"
                " of sequence batcher"
            )
        if self._iterative:
            return None
        self._controls.check(infer.sequence_id, infer.id)
        sequence = self._live.get(infer.sequence_id)
        if sequence is not None and sequence.closed:
            sequence = None
        if infer.sequence_start:
            if sequence is not None:
                logger.warning("sequence %s of model '%s' starts anew", infer.sequence_id, self._model)
        elif sequence is None:
            raise missing_start(self._model, infer.sequence_id)
        return sequence

    def _begin(self, infer: InferRequest) -> Sequence:
        """Make a sequence and give it a slot, or a place in the backlog."""
        sequence_id = next(self._numbers) if self._iterative else infer.sequence_id
        sequence = Sequence(sequence_id, before=self._live.get(sequence_id))
        self._live[sequence_id] = sequence
        if sequence.before is None:
            self._backlog.append(sequence)
            self._admit()
        return sequence

    def _admit(self) -> None:
        """Give free slots to waiting sequences, the lowest slot of any instance first."""
        while self._backlog:
            vacant = [lane for lane in self._lanes.values() if lane.lowest_vacant is not None]
            if not vacant:
                return
            sequence = self._backlog.popleft()
            min(vacant, key=lambda lane: lane.lowest_vacant or 0).occupy(sequence)
            if sequence.expiry is not None:
                sequence.expiry.cancel()
                sequence.expiry = None
            if sequence.turns and sequence.lane is not None:
                sequence.lane.offer(sequence.turns[0])

    def _enqueue(self, turn: SequenceRequest, sequence: Sequence) -> None:
        turn.client = infer = turn.infer
        turn.sequence = sequence
        sequence.closed = self._iterative or infer.sequence_end
        sequence.turns.append(turn)
        if sequence.lane is None:
            self._limit_wait(sequence, turn)
        elif sequence.running is None and len(sequence.turns) == 1:
            self._idleness.wake(sequence)
            sequence.lane.offer(turn)

    def _limit_wait(self, sequence: Sequence, turn: SequenceRequest) -> None:
        """A sequence may wait in the backlog as long as the least patient of its requests."""
        timeout_us = turn.client.timeout_us
        if not timeout_us:
            return
        loop = asyncio.get_running_loop()
        expires = loop.time() + timeout_us / 1e6
        if sequence.expiry is not None:
            if sequence.expiry.when() <= expires:
                return
            sequence.expiry.cancel()
        sequence.expiry = loop.call_at(expires, self._abandon, sequence, EXPIRED)

    def _choose(self, lane: InstanceSlots) -> Choice:
        """What a lane executes next, once what is past its deadline is out of the way."""
        while True:
            choice = lane.choose(time.monotonic_ns())
            late = [turn for turn in choice.rows if turn and _is_late(turn)] if self._room.timed else ()
            if not late:
                return choice
            for turn in late:
                self._abandon(turn.sequence, TIMEOUT)

    def _batch(self, lane: InstanceSlots, choice: Choice) -> Batch:
        turns = [turn for turn in choice.rows if turn is not None]
        lane.take(turns)
        self._room.leave(turns)
        now = time.monotonic_ns()
        for turn in turns:
            if lane.order is not None and not turn.dispatch_ns:
                lane.order.track(turn)
            self._dispatch(turn, now)
        if len(turns) == len(choice.rows):
            return Batch(list(turns), len(turns), choice.reason)
        null_states = self._states.initial()
        requests: list[QueuedRequest] = [
            turn or PaddingRequest(turns[0], self._controls, null_states) for turn in choice.rows
        ]
        batch = Batch(requests, len(requests), choice.reason)
        batch.nulls = len(requests) - len(turns)
        return batch

    def _dispatch(self, turn: SequenceRequest, now_ns: int) -> None:
        sequence = turn.sequence
        sequence.turns.popleft()
        sequence.running = turn
        starts = turn.client.sequence_start or (self._iterative and not turn.dispatch_ns)
        turn.dispatch_ns = turn.dispatch_ns or now_ns
        turn.prepare(self._controls, self._states, starts)

    def _settle(self, turn: SequenceRequest) -> None:
        """An execution is over: the sequence goes on, rests or ends."""
        sequence = turn.sequence
        if not turn.answered:
            if turn.rescheduled:
                self._reschedule(turn, sequence)
            elif self._states:
                turn.sink = partial(self._deliver_late, turn, turn.sink)
                return
        sequence.running = None
        if sequence.turns and sequence.lane is not None:
            sequence.lane.offer(sequence.turns[0])
        elif sequence.closed:
            self._end(sequence)
        else:
            self._idleness.rest(sequence)

    def _deliver_late(self, turn: SequenceRequest, sink: Sink, response: InferResponse) -> None:
        """Deliver what a decoupled model sends after its execution: until it is done, the next request would
        be given a state that lacks this one's."""
        try:
            sink(response)
        finally:
            if response.final:
                self._settle(turn)
                self.release()

    def _reschedule(self, turn: SequenceRequest, sequence: Sequence) -> None:
        if turn.cancelled:
            turn.fail(CANCELLED)
        elif turn.may_reschedule:
            sequence.turns.appendleft(turn)
            self._room.enter(turn, again=True)

    def _abandon(self, sequence: Sequence, failure: Failure) -> None:
        """End a sequence before its time: its queued requests fail, later ones find it gone."""
        self._room.leave(sequence.turns)
        if sequence.lane is not None and sequence.turns:
            sequence.lane.withdraw(sequence.turns[0])
        for turn in sequence.turns:
            turn.fail(failure)
        sequence.turns.clear()
        sequence.closed = True
        if sequence.running is None:
            self._end(sequence)

    def _expire(self, sequence: Sequence) -> None:
        logger.info("sequence %s of model '%s' rested for too long", sequence.id, self._model)
        self._end(sequence)
        self.release()

    def _end(self, sequence: Sequence) -> None:
        """Forget a sequence; its slot goes to the next in the backlog."""
        if self._live.get(sequence.id) is sequence:
            if sequence.before is None:
                del self._live[sequence.id]
            else:
                self._live[sequence.id] = sequence.before
        self._idleness.wake(sequence)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
            sequence.expiry = None
        lane = sequence.lane
        if lane is not None:
            lane.vacate(sequence)
            if lane.closing:
                self._leave_if_empty(lane)
        elif sequence.before is None:
            self._backlog.remove(sequence)
        following = sequence.unlink()
        if following is not None:
            self._backlog.append(following)
        self._admit()

    def _wait(self, until_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, until_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self.release)


def _is_late(turn: SequenceRequest) -> bool:
    deadline = turn.client.deadline
    return bool(deadline) and time.monotonic() > deadline
