"""What is queued at a sequence model, against its bounds."""

from collections.abc import Iterable

from deployments.scheduling.queue import queue_full
from deployments.scheduling.sequence.requests import SequenceRequest


class QueueQuota:
    """Counts the queued requests of every sequence; one request alone may be of any size.

    Attributes:
        requests: how many are queued.
        nbytes: of their inputs.
        timed: how many of them have a deadline.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self.requests = 0
        self.nbytes = 0
        self.timed = 0

    def enter(self, turn: SequenceRequest, again: bool = False) -> None:
        """Measure and count a request; one that was in before is not refused any more.

        Raises:
            InferError: UNAVAILABLE when there is no room for it.
        """
        nbytes = 0
        for tensor in turn.infer.inputs:
            nbytes += len(tensor.data)
        queued, total = self.requests, self.nbytes + nbytes
        if queued and not again and (queued >= self._max_requests or total > self._max_bytes):
            raise queue_full(turn.infer.id)
        turn.nbytes = nbytes
        self.nbytes = total
        self.requests = queued + 1
        if turn.infer.deadline:
            self.timed += 1

    def leave(self, turns: Iterable[SequenceRequest]) -> None:
        """Count these no more."""
        for turn in turns:
            self.requests -= 1
            self.nbytes -= turn.nbytes
            if turn.infer.deadline:
                self.timed -= 1
