"""Global limit on response bytes buffered for slow clients."""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

DEFAULT_BYTES: Final = 4 << 30
TOO_SLOW: Final = "client reads responses too slowly: send buffer limit exceeded"
"""Error of a stream whose buffered responses exceed a limit."""
RESPONSE_BYTES: Final = 1 << 10
"""Approximate size of a buffered response besides its tensors."""
_KERNEL_BYTES: Final = 1 << 20
"""Bytes that the kernel accepts for any client: they say nothing about how fast it reads."""


class BufferedSender(Protocol):
    """A connection or stream that buffers responses."""

    def buffered_bytes(self) -> int:
        """Return the response bytes buffered now."""

    def evict(self) -> None:
        """Drop the buffered responses; end with an error if possible, else close the connection."""


class _Usage:
    """The buffered bytes of one sender, and its pace."""

    __slots__ = ("drained", "since", "size")

    def __init__(self, since: float) -> None:
        self.since = since
        self.size = self.drained = 0

    def seconds_left(self, now: float) -> float:
        """Return how long the client needs for the rest at the rate at which it has read so far."""
        return self.size * (now - self.since) / (self.drained + _KERNEL_BYTES)


class SendBufferLimit:
    """Counts buffered response bytes; above `limit`, evicts senders, slowest drain rate first.

    Neither the largest sender is evicted first, which may be a fast client of a large model, nor the one that
    has read nothing for longest: reading a byte now and then would avoid that. Only senders that are blocked
    are counted: connections with a full transport or closed windows, streams whose writer is behind. Every
    connection may buffer less than that uncounted.

    Attributes:
        total: buffered bytes, as last updated.
        evicted: number of senders evicted.
        too_slow: number of connections and calls ended because their clients send or read below the minimum
            rate.
    """

    def __init__(self, limit: int = DEFAULT_BYTES, now: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self.evicted = 0
        self.too_slow = 0
        self._limit = limit
        self._now = now
        self._usage: dict[BufferedSender, _Usage] = {}

    def update(self, sender: BufferedSender) -> bool:
        """Count what a sender buffers now, which may evict it; return whether it buffers anything."""
        self._count(sender)
        if self.total > self._limit:
            self._evict_slowest()
        return sender in self._usage

    def remove(self, sender: BufferedSender) -> None:
        """Count nothing for a sender any more."""
        usage = self._usage.pop(sender, None)
        if usage is not None:
            self.total -= usage.size

    def measure(self) -> int:
        """Update all senders; return the buffered bytes."""
        for sender in list(self._usage):
            self._count(sender)
        return self.total

    def _count(self, sender: BufferedSender) -> None:
        size = sender.buffered_bytes()
        if not size:
            self.remove(sender)
            return
        usage = self._usage.get(sender)
        if usage is None:
            usage = self._usage[sender] = _Usage(self._now())
        usage.drained += max(0, usage.size - size)
        self.total += size - usage.size
        usage.size = size

    def _evict_slowest(self) -> None:
        before = self.measure()
        evicted = self.evicted
        now = self._now()
        for sender in sorted(self._usage, key=lambda each: self._usage[each].seconds_left(now), reverse=True):
            if self.total <= self._limit:
                break
            self.remove(sender)
            self.evicted += 1
            sender.evict()
        if self.evicted > evicted:
            logger.warning(
                "send buffer limit (--max-unsent-bytes=%d) reached with %d bytes: "
                "evicted %d slow connections or streams, which buffered %d bytes",
                self._limit,
                before,
                self.evicted - evicted,
                before - self.total,
            )
