"""A run of an ensemble whose configuration enables the response cache: what is found there needs no step.

As in Triton the ensemble has entries of its own, beside those of the models it calls. They are kept in the
process that runs it, and belong to the applications that its steps call, those within other ensembles
included: a reloaded model is asked again.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from app.cache.response_cache import Entry, ResponseCache, request_key
from app.core.errors import InferError
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.ensemble.execution import EnsembleExecution
from app.ensemble.graph import EnsembleGraph

if TYPE_CHECKING:
    from app.ensemble.runner import Ensemble, Models


def cacheable(request: InferRequest) -> bool:
    """Whether the response depends on the tensors alone, and is not written to memory of the client's."""
    return not (request.regions or request.sequence_id)


class CachedRun(EnsembleExecution):
    """Looks the request up before it begins, and keeps the response."""

    def __init__(
        self,
        ensemble: "Ensemble",
        models: "Models",
        request: InferRequest,
        sink: Sink,
        cache: ResponseCache,
        serving: Callable[[EnsembleGraph], Iterable[str]],
    ) -> None:
        """`serving` names what answers the steps of a plan now."""
        super().__init__(ensemble, models, request, sink)
        self._cache = cache
        self._serving = serving
        self._key = b""
        self._cache_ns = 0

    def _begin(self) -> None:
        started = time.monotonic_ns()
        self._key = request_key(self._request, *self._ensemble.identity, *self._serving(self._plan))
        self._cache.lookup(self._key, lambda found: self._looked_up(found, started))

    def _looked_up(self, found: Entry | None, started: int) -> None:
        if self._done:
            return
        self._cache_ns = time.monotonic_ns() - started
        if found is not None:
            self._ensemble.statistics.record_hit(time.monotonic_ns() - self._started_ns, self._cache_ns)
            self._deliver_last(found.response().outputs)
            return
        try:
            super()._begin()
        except InferError as error:
            self._fail(error.failure)

    def _finish(self, outputs: tuple[Tensor, ...]) -> None:
        started = time.monotonic_ns()
        self._cache.insert(self._key, Entry.of(InferResponse(outputs=outputs)))
        self._ensemble.statistics.record_miss(self._cache_ns + time.monotonic_ns() - started)
        super()._finish(outputs)
