"""Timeouts of sequences without a request (`max_sequence_idle_microseconds`)."""

import asyncio
from collections.abc import Callable

from deployments.scheduling.sequence.sequences import Sequence


class IdleTimeouts:
    """Expires idle sequences. One timer serves all of them, because their timeout is the same.

    Args:
        timeout_s: how long a sequence may be idle.
        expired: called on the loop for each sequence whose timeout has ended.
    """

    def __init__(self, timeout_s: float, expired: Callable[[Sequence], None]) -> None:
        self._timeout_s = timeout_s
        self._expired = expired
        self._since: dict[Sequence, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def mark_idle(self, sequence: Sequence) -> None:
        """Start the timeout of a sequence that has no request."""
        loop = asyncio.get_running_loop()
        self._since[sequence] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._expire)

    def mark_active(self, sequence: Sequence) -> None:
        """Stop the timeout of a sequence that has a request again, or has ended."""
        self._since.pop(sequence, None)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._since:
            sequence, since = next(iter(self._since.items()))  # idle for longest
            if since + self._timeout_s > now:
                self._timer = loop.call_at(since + self._timeout_s, self._expire)
                return
            del self._since[sequence]
            self._expired(sequence)
            if self._timer is not None:  # `expired` admitted another sequence, which is idle already
                return
