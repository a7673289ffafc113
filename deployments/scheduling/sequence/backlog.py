"""Sequences that wait for a slot, and which requests come too late to begin one."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from app.core.errors import Failure
from app.core.failures import SEQUENCE_EXPIRED, TIMEOUT
from app.core.observability.statistics import MovingMean
from deployments.scheduling.admission import Admission
from deployments.scheduling.sequence.sequences import InstanceSlots, Sequence, SequenceRequest


class Backlog:
    """Sequences without a slot, in order of arrival.

    Args:
        admission: says which requests come too late.
        end: ends a sequence whose timeout is over.
    """

    def __init__(self, admission: Admission, end: Callable[[Sequence, Failure], None]) -> None:
        self._admission = admission
        self._end = end
        self._sequences: deque[Sequence] = deque()
        self._occupied_ns = MovingMean()

    def __len__(self) -> int:
        return len(self._sequences)

    def append(self, sequence: Sequence) -> None:
        """Add a sequence."""
        self._sequences.append(sequence)

    def popleft(self) -> Sequence:
        """Remove and return the first sequence."""
        sequence = self._sequences.popleft()
        sequence.cancel_expiry()
        return sequence

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended."""
        self._sequences.remove(sequence)

    def limit_wait(self, sequence: Sequence, request: SequenceRequest) -> None:
        """Let a sequence wait no longer than the shortest timeout of its requests."""
        timeout_us = request.client.timeout_us
        if not timeout_us:
            return
        loop = asyncio.get_running_loop()
        expires = loop.time() + timeout_us / 1e6
        if sequence.expiry is not None:
            if sequence.expiry.when() <= expires:
                return
            sequence.expiry.cancel()
        sequence.expiry = loop.call_at(expires, self._end, sequence, SEQUENCE_EXPIRED)

    def record_vacated(self, sequence: Sequence) -> None:
        """Record for how long a sequence has had its slot."""
        self._occupied_ns.add(time.monotonic_ns() - sequence.occupied_ns)

    def wait_ns(self, slots: Iterable[InstanceSlots]) -> int:
        """Return how long the first request of a new sequence is expected to wait: for a slot, then in it."""
        ahead = size = 0
        for each in slots:
            ahead += each.ahead
            size += each.size
        waiting = len(self._sequences)
        for_slot = (waiting + 0.5) / max(size, 1) * self._occupied_ns.value if waiting else 0.0
        return int(for_slot) + self._admission.wait_ns(ahead)

    def late(self) -> list[tuple[Sequence, Failure]]:
        """Return the sequences at the head that come too late to begin; never the last."""
        found: list[tuple[Sequence, Failure]] = []
        ahead = len(self._sequences) - 1
        for sequence in islice(self._sequences, ahead):
            failure = lateness(sequence.queued[0], ahead - len(found), self._admission)
            if failure is None:
                break
            found.append((sequence, failure))
        return found


def lateness(request: SequenceRequest, ahead: int, admission: Admission) -> Failure | None:
    """Return why not to execute a request; one that continues a sequence fails by its deadline only."""
    deadline = request.client.deadline
    if deadline and time.monotonic() > deadline:
        return TIMEOUT
    return admission.lateness(request, ahead) if request.begins else None
