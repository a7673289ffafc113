"""Timeouts of sequences that get no request (`max_sequence_idle_microseconds`).

As in Triton's core (`ReaperThread`, src/sequence_batch_scheduler), the time counts from the arrival of the
last request, whose execution may outlast it. Here it counts from the slot for those that waited for one.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from deployments.scheduling.sequence.sequences import Sequence

LEFT_S: Final = 0.1
"""How long a sequence may be idle whose client has left without an answer, while others wait for a slot.

Under overload most clients that leave do not come back; the slot of each would execute nothing meanwhile."""


class IdleTimeouts:
    """Expires sequences in slots. One timer serves all of them, because their timeout is the same.

    Args:
        timeout_s: how long a sequence may get no request.
        expired: called on the loop for each sequence whose timeout has ended.
        others_wait: whether there are sequences without a slot.
    """

    def __init__(
        self, timeout_s: float, expired: Callable[[Sequence], None], others_wait: Callable[[], bool]
    ) -> None:
        self._timeout_s = timeout_s
        self._expired = expired
        self._others_wait = others_wait
        self._since: dict[Sequence, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def restart(self, sequence: Sequence) -> None:
        """Start the timeout of a sequence that got a request, or its slot; stop that of a closed one."""
        self._since.pop(sequence, None)  # so that they stay in the order of their times
        if sequence.closed:
            return
        loop = asyncio.get_running_loop()
        self._since[sequence] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._expire)

    def stop(self, sequence: Sequence) -> None:
        """Stop the timeout of a sequence that has ended."""
        self._since.pop(sequence, None)

    def mark_left(self, sequence: Sequence) -> None:
        """Note that a sequence has no request, and that its client did not await the last answer."""
        if sequence in self._since:
            loop = asyncio.get_running_loop()
            loop.call_later(LEFT_S, self._end_left, sequence, self._since[sequence])

    def _end_left(self, sequence: Sequence, since: float) -> None:
        """End a sequence that has got no request since then as soon as others wait for a slot."""
        if self._since.get(sequence) != since:
            return
        if self._others_wait():
            del self._since[sequence]
            self._expired(sequence)
        else:
            asyncio.get_running_loop().call_later(LEFT_S, self._end_left, sequence, since)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        now = loop.time()
        while self._since:
            sequence, since = next(iter(self._since.items()))  # that has waited for longest
            if since + self._timeout_s > now:
                self._timer = loop.call_at(since + self._timeout_s, self._expire)
                return
            del self._since[sequence]
            if not sequence.closed:
                self._expired(sequence)
            if self._timer is not None:  # `expired` admitted another sequence, which is idle already
                return
