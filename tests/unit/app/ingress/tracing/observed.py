"""Requests submitted through an observer, for tests that answer them themselves."""

from typing import cast

from app.core.inference import Call, Sink
from app.core.tensors import InferRequest
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.routing.table import ModelState, VersionEntry
from tests.unit.app.routing_fakes import FakeCall

ENTRY = VersionEntry("m", 1, ModelState.READY)


class _Service:
    """Keeps what it is asked."""

    def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        self.request, self.sink = request, sink
        return FakeCall()


def observe(
    observer: Observer, request: InferRequest, sink: Sink, origin: RequestOrigin
) -> tuple[InferRequest, Sink]:
    """Return the request and the sink that the service gets."""
    service = _Service()
    observer.observe(cast(InferenceService, service), ENTRY, request, sink, origin)
    return service.request, service.sink
