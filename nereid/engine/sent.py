"""A request on its way to the engine's thread."""

from queue import SimpleQueue
from typing import Final

from app.core.errors import unavailable
from app.core.inference import Cancel, InFlight, Sink, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, failed
from app.ingress.service.interface import InferenceService

MAX_WAITING: Final = 16384
"""Responses of a request that wait to be read; with more, it is cancelled."""

_CALLS_IN_TURN: Final = 16
"""Calls after which a thread waits for the engine's where others have responses to read: a thread that never
waits keeps the interpreter lock from them for 5 ms at a time."""


class Received:
    """The responses of a request, for one thread that reads them.

    Attributes:
        cancel: cancels the request; set once it is sent.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[InferResponse] = SimpleQueue()
        self.cancel: Cancel = cancel_nothing

    def receive(self, response: InferResponse) -> None:
        """Add a response, on the engine's thread."""
        waiting = self._waiting.qsize()
        if waiting < MAX_WAITING or response.final:
            self._waiting.put(response)
            return
        self.cancel()
        if waiting == MAX_WAITING:
            error = unavailable(f"more than {MAX_WAITING} responses wait to be read")
            self._waiting.put(failed(error, final=False))

    def next(self) -> InferResponse:
        """Wait for the next response."""
        return self._waiting.get()


class Waiting:
    """The threads that wait for a response."""

    def __init__(self) -> None:
        self._queues: set[SimpleQueue[InferResponse]] = set()
        self._calls = 0

    def next(self, responses: "SimpleQueue[InferResponse]") -> InferResponse:
        """Wait for the next of the calling thread's responses."""
        if not responses.empty():
            return responses.get()
        self._queues.add(responses)
        try:
            return responses.get()
        finally:
            self._queues.discard(responses)

    def may_call_here(self) -> bool:
        """Return whether the engine may do the work of the next call on the calling thread."""
        self._calls += 1
        if self._calls < _CALLS_IN_TURN:
            return True
        self._calls = 0
        return not any(not responses.empty() for responses in tuple(self._queues))


class SentRequest(InFlight):
    """A request that a thread has sent to a service, which answers on its loop."""

    def __init__(self, service: InferenceService, request: InferRequest, sink: Sink) -> None:
        super().__init__(request, sink)
        self._service = service

    def start(self) -> None:
        """Submit the request, on the loop."""
        request = self.request
        try:
            entry = self._service.resolve(request.model_name, request.model_version)
            call = self._service.submit(entry, request, self.sink)
        except Exception as error:
            self.fail(error)
        else:
            self.sent(call)
