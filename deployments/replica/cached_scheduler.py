"""A scheduler behind a response cache: `response_cache { enable: true }`.

The cache sits in the replica, in front of the scheduler: whoever calls the model (an ingress, an ensemble, a
BLS model) finds the same entries, a request was validated before its look-up, and the replica's counters tell
hits from misses.
"""

import time
from typing import NamedTuple

from app.cache.response_cache import Entry, ResponseCache, request_key
from app.core.errors import InferError
from app.core.statistics import Statistics
from app.core.tensors import InferResponse
from deployments.execution.queued_request import CANCELLED, QueuedRequest
from deployments.scheduling.base import Scheduler


class _LookUp(NamedTuple):
    key: bytes
    started_ns: int


class CachedScheduler:
    """Answers from the cache what it can and submits the rest.

    Args:
        identity: what else than a request decides its answer: model, version, the files loaded.
    """

    def __init__(
        self, cache: ResponseCache, scheduler: Scheduler, statistics: Statistics, *identity: str
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._statistics = statistics
        self._identity = identity
        self._looking: dict[QueuedRequest, _LookUp] = {}
        self._missed: dict[QueuedRequest, tuple[bytes, int]] = {}

    def submit(self, pending: QueuedRequest) -> None:
        """Look the request up; raises what `Scheduler.submit` raises."""
        key = request_key(pending.infer, *self._identity)
        self._looking[pending] = _LookUp(key, time.monotonic_ns())
        self._cache.lookup(key, lambda entry: self._looked_up(pending, entry))

    def cancel(self, pending: QueuedRequest) -> None:
        """As `Scheduler.cancel`; also while the look-up is under way."""
        if self._looking.pop(pending, None) is None:
            self._scheduler.cancel(pending)
        else:
            pending.fail(CANCELLED)

    def finished(self, pending: QueuedRequest, response: InferResponse) -> None:
        """A request has its final response: keep it if it was not found before."""
        missed = self._missed.pop(pending, None)
        if missed is None:
            return
        key, lookup_ns = missed
        started = time.monotonic_ns()
        if response.failure is None:
            self._cache.insert(key, Entry.of(response))
        self._statistics.record_miss(lookup_ns + time.monotonic_ns() - started)

    def _looked_up(self, pending: QueuedRequest, entry: Entry | None) -> None:
        looked = self._looking.pop(pending, None)
        if looked is None:  # cancelled meanwhile
            return
        now = time.monotonic_ns()
        if entry is not None:
            pending.dispatch_ns = pending.arrival_ns  # a hit has not been queued
            self._statistics.record_hit(now - looked.started_ns)
            pending.reply(entry.response())
            return
        self._missed[pending] = (looked.key, now - looked.started_ns)
        try:
            self._scheduler.submit(pending)
        except InferError as error:
            del self._missed[pending]
            if not pending.accepted:  # still inside `submit`, whose caller takes the error
                raise
            pending.fail(error.failure)
