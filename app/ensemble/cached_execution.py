"""Execution of an ensemble whose configuration enables the response cache: a hit needs no step.

As in Triton the ensemble has entries of its own, beside those of the models it calls. They are kept in the
process that runs it, and belong to the applications that its steps call, those within other ensembles
included: a reloaded model is called again.
"""

import time
from collections.abc import Callable, Iterable

from app.cache.response_cache import Entry, ResponseCache, request_key
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ensemble.compiled import CompiledEnsemble
from app.ensemble.execution import EnsembleExecution
from app.ensemble.graph import EnsembleGraph
from app.ensemble.plan import Models


def is_cacheable(request: InferRequest) -> bool:
    """Return whether the response depends on the tensors alone, and is not written to a client's memory."""
    return not (request.regions or request.sequence_id)


class CachedExecution(EnsembleExecution):
    """Looks the request up before it runs any step, and inserts the response."""

    def __init__(
        self,
        ensemble: CompiledEnsemble,
        models: Models,
        request: InferRequest,
        sink: Sink,
        cache: ResponseCache,
        serving: Callable[[EnsembleGraph], Iterable[str]],
    ) -> None:
        """`serving` returns what identifies the versions that would answer a graph's steps now."""
        super().__init__(ensemble, models, request, sink)
        self._cache = cache
        self._serving = serving
        self._key = b""
        self._cache_ns = 0

    def _run(self) -> None:
        started = time.monotonic_ns()
        self._key = request_key(self.request, *self._ensemble.identity, *self._serving(self._graph))
        self._cache.lookup(self._key, lambda found: self._on_lookup(found, started))

    def _on_lookup(self, found: Entry | None, started: int) -> None:
        if self.ended:
            return
        self._cache_ns = time.monotonic_ns() - started
        if found is not None:
            self._ensemble.statistics.record_hit(self._cache_ns)
            self._ensemble.statistics.record_success(time.monotonic_ns() - self._started_ns, queue_ns=0)
            self._send_final(found.response().outputs)
            return
        try:
            super()._run()
        except Exception as error:
            self._fail_by(error)

    def _finish(self, outputs: tuple[Tensor, ...]) -> None:
        started = time.monotonic_ns()
        self._cache.insert(self._key, Entry.from_response(InferResponse(outputs=outputs)))
        self._ensemble.statistics.record_miss(self._cache_ns + time.monotonic_ns() - started)
        super()._finish(outputs)
