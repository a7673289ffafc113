"""The sequence batcher: each sequence has a place at one instance for its life, or waits for one."""

import asyncio
import itertools
import logging
import time
from collections import deque
from pathlib import Path
from typing import Final, cast

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, FailureReason, InferError, invalid_arg
from app.core.sequences import SequenceId, missing_start
from app.core.tensors import InferRequest
from deployments.instances import Batch, InstanceThread
from deployments.scheduling.base import Scheduler
from deployments.scheduling.controls import Controls
from deployments.scheduling.idleness import Idleness
from deployments.scheduling.pending import CANCELLED, Pending
from deployments.scheduling.queue import TIMEOUT, RequestQueue, queue_full
from deployments.scheduling.slots import Choice, Lane, lanes
from deployments.scheduling.state import States
from deployments.scheduling.turn import NullTurn, Sequence, Turn
from deployments.statistics import Statistics

logger = logging.getLogger(__name__)

EXPIRED: Final = InferError(
    ErrorCode.UNAVAILABLE, "timeout of the corresponding sequence has been expired", FailureReason.REJECTED
)


class SequenceScheduler(Scheduler):
    """Used when the configuration has `sequence_batching`; takes `Turn`s.

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
        self._lanes: dict[InstanceThread, Lane] = {}
        self._closing: dict[Lane, tuple[InstanceThread, asyncio.Future[None]]] = {}
        self._live: dict[SequenceId, Sequence] = {}
        self._backlog: deque[Sequence] = deque()
        self._room = Room(max_requests, max_bytes)
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> int:
        return self._room.requests

    def add_instance(self, instance: InstanceThread) -> None:
        self._lanes[instance] = self._make_lane()
        self._admit()
        super().add_instance(instance)

    def _withdraw(self, instance: InstanceThread, gone: asyncio.Future[None]) -> None:
        """An instance goes when the sequences that live there have ended, as in Triton."""
        lane = self._lanes[instance]
        lane.closing = True
        self._closing[lane] = (instance, gone)
        self._leave_if_empty(lane)

    def _leave_if_empty(self, lane: Lane) -> None:
        if lane.empty:
            instance, gone = self._closing.pop(lane)
            del self._lanes[instance]
            super()._withdraw(instance, gone)

    def submit(self, pending: Pending) -> None:
        """Queue a request behind its sequence's others, or execute it at once.

        Raises:
            InferError: INVALID_ARG without an id, with a batch size other than 1, or without START where no
                such sequence lives; UNAVAILABLE when too much is queued.
        """
        turn = cast(Turn, pending)
        sequence = self._find(turn)
        self._room.check(turn)
        self._enqueue(turn, sequence or self._begin(turn.client))
        if self._free:
            self.release()

    def cancel(self, pending: Pending) -> None:
        sequence = cast(Turn, pending).sequence
        if sequence is not None and not pending.answered and sequence.running is not pending:
            self._abandon(sequence, CANCELLED)
            self.release()

    def finished(self, instance: InstanceThread, batch: Batch) -> None:
        for pending in batch.requests:
            if isinstance(pending, Turn):
                self._settle(pending)
        super().finished(instance, batch)

    def release(self) -> None:
        wait_until: list[int] = []
        for instance in list(self._free):
            lane = self._lanes.get(instance)
            if lane is None:  # it left when a late sequence of another lane was abandoned
                continue
            choice = self._choose(lane)
            if choice.rows:
                self._free.remove(instance)
                instance.execute(self._batch(lane, choice))
            elif choice.wait_until_ns:
                wait_until.append(choice.wait_until_ns)
        if wait_until:
            self._wait(min(wait_until))

    def _find(self, turn: Turn) -> Sequence | None:
        """The live sequence of a request; None for one that starts."""
        infer = turn.client
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
        if not infer.sequence_start and (sequence is None or sequence.closed):
            raise missing_start(self._model, infer.sequence_id)
        if sequence is not None and infer.sequence_start and not sequence.closed:
            logger.warning("sequence %s of model '%s' starts anew", infer.sequence_id, self._model)
        return sequence

    def _begin(self, infer: InferRequest) -> Sequence:
        """Make a sequence and give it a slot, or a place in the backlog."""
        sequence = Sequence(next(self._numbers) if self._iterative else infer.sequence_id)
        self._live[sequence.id] = sequence
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
            self._offer(sequence)

    def _enqueue(self, turn: Turn, sequence: Sequence) -> None:
        turn.sequence = sequence
        sequence.closed = self._iterative or turn.client.sequence_end
        sequence.turns.append(turn)
        self._room.enter(turn)
        self._idleness.wake(sequence)
        if sequence.lane is None:
            self._limit_wait(sequence, turn)
        elif sequence.running is None and len(sequence.turns) == 1:
            self._offer(sequence)

    def _offer(self, sequence: Sequence) -> None:
        if sequence.lane is not None and sequence.turns:
            sequence.lane.offer(sequence.turns[0])

    def _limit_wait(self, sequence: Sequence, turn: Turn) -> None:
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

    def _choose(self, lane: Lane) -> Choice:
        """What a lane executes next, once what is past its deadline is out of the way."""
        while True:
            choice = lane.choose(time.monotonic_ns())
            late = [turn for turn in choice.rows if turn is not None and _is_late(turn)]
            if not late:
                return choice
            for turn in late:
                if turn.sequence is not None:
                    self._abandon(turn.sequence, TIMEOUT)

    def _batch(self, lane: Lane, choice: Choice) -> Batch:
        now = time.monotonic_ns()
        real = [turn for turn in choice.rows if turn is not None]
        for turn in real:
            self._dispatch(turn, lane, now)
        if len(real) == len(choice.rows):
            return Batch(list(real), len(real), choice.reason)
        null_states = self._states.initial()
        requests: list[Pending] = [
            turn or NullTurn(real[0], self._controls, null_states) for turn in choice.rows
        ]
        return Batch(requests, len(requests), choice.reason)

    def _dispatch(self, turn: Turn, lane: Lane, now_ns: int) -> None:
        sequence = turn.sequence
        assert sequence is not None
        lane.withdraw(turn)
        sequence.turns.popleft()
        sequence.running = turn
        self._room.leave(turn)
        starts = turn.client.sequence_start or (self._iterative and not turn.dispatch_ns)
        if starts:
            sequence.kept = self._states.initial()
        turn.dispatch_ns = turn.dispatch_ns or now_ns
        turn.prepare(self._controls, self._states, sequence.kept, starts)

    def _settle(self, turn: Turn) -> None:
        """An execution is over: the sequence goes on, rests or ends."""
        sequence = turn.sequence
        assert sequence is not None
        sequence.running = None
        if turn.rescheduled and not turn.answered:
            self._reschedule(turn, sequence)
        if sequence.turns:
            self._offer(sequence)
        elif sequence.closed:
            self._end(sequence)
        else:
            self._idleness.rest(sequence)

    def _reschedule(self, turn: Turn, sequence: Sequence) -> None:
        if turn.cancelled:
            turn.fail(CANCELLED)
        elif turn.may_reschedule:
            sequence.turns.appendleft(turn)
            self._room.enter(turn)

    def _abandon(self, sequence: Sequence, error: InferError) -> None:
        """End a sequence before its time: its queued requests fail, later ones find it gone."""
        for turn in sequence.turns:
            self._room.leave(turn)
            if sequence.lane is not None:
                sequence.lane.withdraw(turn)
            turn.fail(error)
        sequence.turns.clear()
        if self._live.get(sequence.id) is sequence:
            del self._live[sequence.id]
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
            del self._live[sequence.id]
        self._idleness.wake(sequence)
        if sequence.expiry is not None:
            sequence.expiry.cancel()
            sequence.expiry = None
        if sequence.lane is None:
            self._backlog.remove(sequence)
            return
        lane = sequence.lane
        lane.vacate(sequence)
        if lane.closing:
            self._leave_if_empty(lane)
        self._admit()

    def _wait(self, until_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay = max(0, until_ns - time.monotonic_ns()) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self.release)


class Room:
    """What is queued, against its bounds; one request alone may be of any size."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.nbytes = 0

    def check(self, turn: Turn) -> None:
        """Measure a request.

        Raises:
            InferError: UNAVAILABLE when there is no room for it.
        """
        turn.nbytes = sum(len(tensor.data) for tensor in turn.client.inputs)
        full = self.requests >= self._max_requests or self.nbytes + turn.nbytes > self._max_bytes
        if self.requests and full:
            raise queue_full()

    def enter(self, turn: Turn) -> None:
        """Count a request that was checked."""
        self.requests += 1
        self.nbytes += turn.nbytes

    def leave(self, turn: Turn) -> None:
        """Count it no more."""
        self.requests -= 1
        self.nbytes -= turn.nbytes


def _is_late(turn: Turn) -> bool:
    deadline = turn.client.deadline
    return bool(deadline) and time.monotonic() > deadline
