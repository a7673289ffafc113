"""Requests submitted through an observer, for tests that answer them themselves."""

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.routing.table import ModelState, VersionEntry

ENTRY = VersionEntry("m", 1, ModelState.READY)


class _Service:
    """Keeps what it is asked."""

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        self.request, self.sink = request, sink
        return None


def observe(
    observer: Observer, request: InferRequest, sink: Sink, origin: RequestOrigin
) -> tuple[InferRequest, Sink]:
    """Return the request and the sink that the service gets."""
    service = _Service()
    observer.submit(service, ENTRY, request, sink, origin)
    return service.request, service.sink
