"""Calls of a Python model to other models: from its requests to those of the server, and back."""

import asyncio
import json
import queue
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from typing import Final

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, failed
from backends.base import Request
from backends.python.errors import TritonError
from backends.python.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from backends.python.response import InferenceResponse
from backends.python.tensor import Tensor

chain: ContextVar[tuple[str, ...]] = ContextVar("chain", default=())
"""The models whose calls the requests in execution are part of."""

MAX_WAITING: Final = 16384
"""Responses of one call that its model has not read."""


def within(requests: Sequence[Request], execute: Callable[[], None]) -> None:
    """Execute requests of which some are part of another model's call, so that their calls say so too."""
    context = copy_context()
    context.run(chain.set, tuple(dict.fromkeys(name for each in requests for name in each.infer.chain)))
    context.run(execute)


def wire_request(request: InferenceRequest, caller: str) -> InferRequest:
    """The request as the server passes it on, `caller` being the model that makes it."""
    name, version = request.target()
    flags = request.flags()
    return InferRequest(
        name,
        str(version) if version > 0 else "",
        tuple(tensor._to_wire() for tensor in request.inputs()),
        tuple(RequestedOutput(output) for output in request.requested_output_names()),
        request.request_id(),
        json.loads(request.parameters()),
        request.correlation_id(),
        bool(flags & SEQUENCE_START),
        bool(flags & SEQUENCE_END),
        timeout_us=request.timeout(),
        trace=request.trace()._traceparent,
        chain=tuple(dict.fromkeys((*chain.get(), caller))),
    )


def model_response(response: InferResponse) -> InferenceResponse:
    """A response as the model reads it."""
    if response.error is not None:
        return InferenceResponse(error=TritonError.of(response.error))
    tensors = [Tensor._received(tensor) for tensor in response.outputs]
    return InferenceResponse(tensors, parameters=response.parameters)


class ResponseIterator:
    """The responses of a call with `decoupled=True`, as they come; the last may be empty."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()
        self._cancel: Callable[[], None] | None = None
        self._ended = False

    def __iter__(self) -> Iterator[InferenceResponse]:
        return self

    def __next__(self) -> InferenceResponse:
        if self._ended:
            raise StopIteration
        response = self._waiting.get()
        self._ended = response.final
        return model_response(response)

    def cancel(self) -> None:
        """Ask for cancellation; the last response is then an error."""
        if self._cancel is not None:
            self._cancel()

    def put(self, response: InferResponse) -> None:
        """Take a response; called on the data-plane loop."""
        if self._waiting.qsize() < MAX_WAITING or response.final:
            self._waiting.put(response)
            return
        self.cancel()
        text = f"more than {MAX_WAITING} responses wait to be read"
        self._waiting.put(failed(InferError(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED)))

    def cancels(self, cancel: Callable[[], None]) -> None:
        """Say how the call is cancelled, from any thread."""
        self._cancel = cancel


class Calls(ABC):
    """`exec` and `async_exec` of requests, over one way to send them."""

    def __init__(self, caller: str) -> None:
        """`caller` is the model that calls."""
        self.caller = caller

    @abstractmethod
    def submit(
        self, infer: InferRequest, sink: Callable[[InferResponse], None], decoupled: bool
    ) -> Callable[[], None]:
        """Send a request, from any thread, without waiting; returns what cancels it.

        `sink` is called once with a final response, whatever becomes of the request, and with others before
        where `decoupled` allows them; on any thread, also before this returns.
        """

    def exec(self, request: InferenceRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
        """Send and wait for the response, or return an iterator over the responses to come."""
        responses = self._start(wire_request(request, self.caller), decoupled)
        return responses if decoupled else next(responses)

    def async_exec(
        self, request: InferenceRequest, decoupled: bool
    ) -> Awaitable[InferenceResponse | ResponseIterator]:
        """`exec` for a running event loop; giving up on it cancels the request."""
        return self._exec_async(wire_request(request, self.caller), decoupled)

    def _start(self, infer: InferRequest, decoupled: bool) -> ResponseIterator:
        responses = ResponseIterator()
        responses.cancels(self.submit(infer, responses.put, decoupled))
        return responses

    async def _exec_async(self, infer: InferRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
        if decoupled:
            return self._start(infer, decoupled)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[InferResponse] = loop.create_future()

        def settle(response: InferResponse) -> None:
            if not answered.done():
                answered.set_result(response)

        def sink(response: InferResponse) -> None:
            try:
                loop.call_soon_threadsafe(settle, response)
            except RuntimeError:  # the model's loop is closed: nobody waits
                pass

        cancel = self.submit(infer, sink, False)
        try:
            return model_response(await answered)
        except asyncio.CancelledError:
            cancel()
            raise
