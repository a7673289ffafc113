"""A scheduler behind a response cache: `response_cache { enable: true }`.

The cache is in the replica, in front of the scheduler: ingresses, ensembles and BLS models share its entries,
a request is validated before its lookup, and the replica counts hits and misses.
"""

import time
from typing import NamedTuple

from app.cache.response_cache import Entry, ResponseCache, request_key
from app.core.errors import InferError
from app.core.failures import CANCELLED
from app.core.observability.statistics import Statistics
from app.core.tensors import InferResponse
from deployments.execution.queued_request import QueuedRequest
from deployments.scheduling.base import Scheduler


class _Lookup(NamedTuple):
    key: bytes
    started_ns: int


class CachedScheduler:
    """Answers requests from the cache, and submits the others to the scheduler.

    Args:
        cache: the response cache.
        scheduler: the scheduler behind it.
        statistics: counts hits and misses.
        identity: model, version and fingerprint, on which responses depend besides the request.
    """

    def __init__(
        self, cache: ResponseCache, scheduler: Scheduler, statistics: Statistics, *identity: str
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._statistics = statistics
        self._identity = identity
        self._lookups: dict[QueuedRequest, _Lookup] = {}
        self._missed: dict[QueuedRequest, tuple[bytes, int]] = {}

    def schedule(self, pending: QueuedRequest) -> None:
        """Look the request up, and schedule it on a miss; raises as `Scheduler.schedule`.

        A mirrored request is to be executed, and to leave the entries to those of clients.
        """
        if pending.infer.mirrored:
            self._scheduler.schedule(pending)
            return
        key = request_key(pending.infer, *self._identity)
        self._lookups[pending] = _Lookup(key, time.monotonic_ns())
        self._cache.lookup(key, lambda entry: self._on_lookup(pending, entry))

    def cancel(self, pending: QueuedRequest) -> None:
        """Cancel a request, also during its lookup; see `Scheduler.cancel`."""
        if self._lookups.pop(pending, None) is None:
            self._scheduler.cancel(pending)
        else:
            pending.fail(CANCELLED)

    def finished(self, pending: QueuedRequest, response: InferResponse) -> None:
        """Insert the final response of a request that was a miss."""
        missed = self._missed.pop(pending, None)
        if missed is None:
            return
        key, lookup_ns = missed
        started = time.monotonic_ns()
        if response.failure is None:
            self._cache.insert(key, Entry.from_response(response))
        self._statistics.record_miss(lookup_ns + time.monotonic_ns() - started)

    @property
    def failures(self) -> int:
        """Lookups and insertions of the cache that have failed."""
        return self._cache.failures

    def open(self) -> None:
        """Connect the cache."""
        self._cache.open()

    async def close(self) -> None:
        """Close the cache's connections."""
        await self._cache.close()

    def _on_lookup(self, pending: QueuedRequest, entry: Entry | None) -> None:
        lookup = self._lookups.pop(pending, None)
        if lookup is None:  # cancelled meanwhile
            return
        now = time.monotonic_ns()
        if entry is not None:
            pending.dispatch_ns = pending.arrival_ns  # a hit is not queued
            self._statistics.record_hit(now - lookup.started_ns)
            pending.deliver(entry.response())
            return
        self._missed[pending] = (lookup.key, now - lookup.started_ns)
        try:
            self._scheduler.schedule(pending)
        except InferError as error:
            del self._missed[pending]
            if not pending.accepted:  # still inside `submit`, whose caller handles the error
                raise
            pending.fail(error.failure)
