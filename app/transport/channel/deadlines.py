"""A timer wheel for the deadlines of requests."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

TICK: Final = 0.02
"""Resolution in seconds: a stream expires at most this late."""


class Deadlines:
    """A wheel of buckets, one per tick that has a deadline; adding and removing cost a few set operations."""

    def __init__(self, loop: asyncio.AbstractEventLoop, grace: float, expired: Callable[[int], None]) -> None:
        """`expired(stream)` is called once for each stream not removed `grace` seconds after its deadline."""
        self._loop = loop
        self._grace = grace
        self._expired = expired
        self._buckets: dict[int, set[int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_bucket = 0

    def add(self, stream: int, deadline: float) -> int:
        """Add the deadline of a stream, in `time.monotonic` seconds; return its bucket, never 0."""
        bucket = max(1, int((deadline + self._grace) / TICK) + 1)
        streams = self._buckets.get(bucket)
        if streams is None:
            streams = self._buckets[bucket] = set()
            if self._timer is None or bucket < self._timer_bucket:
                self._arm(bucket)
        streams.add(stream)
        return bucket

    def remove(self, stream: int, bucket: int) -> None:
        """Remove a stream, which may have expired already."""
        streams = self._buckets.get(bucket)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._buckets[bucket]

    def clear(self) -> None:
        """Remove every stream and stop the timer."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, bucket: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_bucket = bucket
        # loop.time() may be another clock than time.monotonic() under a loop of the user's choice.
        self._timer = self._loop.call_later(max(0.0, bucket * TICK - monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = int(monotonic() / TICK)
        for bucket in sorted(bucket for bucket in self._buckets if bucket <= now):
            for stream in self._buckets.pop(bucket, ()):
                self._expired(stream)
        if self._buckets:
            self._arm(min(self._buckets))
