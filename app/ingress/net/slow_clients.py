"""What an ingress keeps for clients that are slow to take their answers: one bound over all of them."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 4 << 30
TOO_SLOW: Final = "the stream's responses are read too slowly"
"""What ends a stream whose client is too far behind."""


class BufferedSender(Protocol):
    """A connection or a stream."""

    def unsent(self) -> int:
        """Bytes of answers that wait for its client now."""

    def give_up(self) -> None:
        """Drop them, and tell the client in the way that is left: an error, or the end of the connection."""


RESPONSE_BYTES: Final = 1 << 10
"""What a response that waits takes besides its tensors, roughly."""

_TAKEN_AT_ONCE: Final = 1 << 20
"""What the kernel takes for any client, the slowest too: it says nothing of the pace."""


class _Held:
    __slots__ = ("since", "size", "taken")

    def __init__(self, since: float) -> None:
        self.since = since
        self.size = self.taken = 0


class SendBufferLimit:
    """Counts the answers that wait, and above `limit` bytes ends who would take the longest over them.

    Not who holds most, which may be a quick client of a large model; nor who has taken nothing for longest,
    which a byte now and then disproves. Only those that wait come here: a connection reports when its
    transport is full or a window is closed, a stream when its writer is behind. Less than that, up to the
    transports' own buffers, a connection may hold uncounted.

    Attributes:
        total: bytes that wait, as last reported.
        ended: holders that were given up.
    """

    def __init__(self, limit: int = DEFAULT_BYTES, now: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self.ended = 0
        self._limit = limit
        self._now = now
        self._held: dict[BufferedSender, _Held] = {}

    def note(self, holder: BufferedSender) -> bool:
        """Take note of what a holder holds now; returns whether that is anything. It may end in here."""
        self._measure(holder)
        if self.total > self._limit:
            self._make_room()
        return holder in self._held

    def forget(self, holder: BufferedSender) -> None:
        """A holder holds nothing any more."""
        held = self._held.pop(holder, None)
        if held is not None:
            self.total -= held.size

    def measure(self) -> int:
        """The bytes that wait now."""
        for holder in list(self._held):
            self._measure(holder)
        return self.total

    def _measure(self, holder: BufferedSender) -> None:
        size = holder.unsent()
        if not size:
            self.forget(holder)
            return
        held = self._held.get(holder)
        if held is None:
            held = self._held[holder] = _Held(self._now())
        held.taken += max(0, held.size - size)
        self.total += size - held.size
        held.size = size

    def _make_room(self) -> None:
        before = self.measure()
        ended = self.ended
        now = self._now()
        for holder in sorted(self._held, key=lambda each: _seconds_left(self._held[each], now), reverse=True):
            if self.total <= self._limit:
                break
            self.forget(holder)
            self.ended += 1
            holder.give_up()
        if self.ended > ended:
            logger.warning(
                "%d bytes of answers waited for slow clients, more than --max-unsent-bytes=%d: "
                "ended %d connections or streams, which held %d of them",
                before,
                self._limit,
                self.ended - ended,
                before - self.total,
            )


def _seconds_left(held: _Held, now: float) -> float:
    """How long a holder would take over what it holds, at its pace so far."""
    return held.size * (now - held.since) / (held.taken + _TAKEN_AT_ONCE)
