"""Calls of a Python model to other models: from its requests to those of the server, and back."""

import asyncio
import json
import queue
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, failed
from backends.base import Request
from backends.python.api.errors import TritonError
from backends.python.api.event_loop import EventLoop
from backends.python.api.request import NO_PARAMETERS, SEQUENCE_END, SEQUENCE_START, InferenceRequest
from backends.python.api.response import InferenceResponse
from backends.python.api.tensor import Tensor

executing: ContextVar[Sequence[Request]] = ContextVar("executing", default=())
"""The batch that the current thread, or the coroutine that it has started, executes."""

MAX_WAITING: Final = 16384
"""Responses of one call that its model has not read."""


def callers() -> tuple[Request, ...]:
    """The requests in whose execution a call is made, as far as they are not answered."""
    return tuple([request for request in executing.get() if not request.answered])


def wire_request(
    request: InferenceRequest, caller: str, callers: Sequence[Request], waits: bool = False
) -> InferRequest:
    """The request as the server passes it on.

    A call may be for any request of the batch: it lives as long as the one with the most time, is as urgent
    as the most urgent, and part of the trace of the one that is traced.

    Args:
        request: what the model made.
        caller: identifier of that model.
        callers: the requests it executes.
        waits: it does nothing until the call has ended.
    """
    name, version = request.target()
    flags = request.flags()
    parameters = request.parameters()
    priority, deadline, trace, chain = _inherited(callers)
    return InferRequest(
        name,
        str(version) if version > 0 else "",
        tuple([tensor._to_wire(viewed=waits) for tensor in request.inputs()]),
        tuple([RequestedOutput(output) for output in sorted(request.requested_output_names())]),
        request.request_id(),
        {} if parameters == NO_PARAMETERS else json.loads(parameters),
        request.correlation_id(),
        bool(flags & SEQUENCE_START),
        bool(flags & SEQUENCE_END),
        priority=priority,
        timeout_us=request.timeout(),
        deadline=deadline,
        trace=request.trace()._traceparent or trace,
        chain=chain if caller in chain else (*chain, caller),
    )


def _inherited(callers: Sequence[Request]) -> tuple[int, float, str, tuple[str, ...]]:
    """Priority, deadline, trace and chain of what is called for these."""
    if len(callers) == 1:
        infer = callers[0].infer
        return infer.priority, infer.deadline, infer.trace, infer.chain
    infers = [each.infer for each in callers]
    deadlines = [infer.deadline for infer in infers]
    return (
        min((infer.priority for infer in infers if infer.priority), default=0),
        max(deadlines, default=0.0) if all(deadlines) else 0.0,
        next((infer.trace for infer in infers if infer.trace), ""),
        tuple(dict.fromkeys(name for infer in infers for name in infer.chain)),
    )


def model_response(response: InferResponse) -> InferenceResponse:
    """A response as the model reads it."""
    if response.failure is not None:
        return InferenceResponse(error=TritonError._from_failure(response.failure))
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
        self._waiting.put(failed(Failure(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED)))

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
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Callable[[], None]:
        """Send a request, from any thread, without waiting; returns what cancels it.

        `callers` are the requests of this process that it may be for. `sink` is called once with a final
        response, whatever becomes of the request, and with others before where `decoupled` allows them; on
        any thread, also before this returns.
        """

    def exec(self, request: InferenceRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
        """Send and wait for the response, or return an iterator over the responses to come."""
        executing = callers()
        infer = wire_request(request, self.caller, executing, waits=not decoupled)
        if decoupled:
            return self._start(infer, decoupled, executing)
        return model_response(self.ask(infer, executing))

    def ask(self, infer: InferRequest, callers: Sequence[Request]) -> InferResponse:
        """Send a request and wait for its only response."""
        answer: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()
        self.submit(infer, answer.put, False, callers)
        return answer.get()

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        """Wait for what an `async def execute` returns; see `Services.run`."""
        return loop.run(coroutine)

    def async_exec(
        self, request: InferenceRequest, decoupled: bool
    ) -> Awaitable[InferenceResponse | ResponseIterator]:
        """`exec` for a running event loop; giving up on it cancels the request."""
        executing = callers()
        return self._exec_async(wire_request(request, self.caller, executing), decoupled, executing)

    def _start(self, infer: InferRequest, decoupled: bool, executing: Sequence[Request]) -> ResponseIterator:
        responses = ResponseIterator()
        responses.cancels(self.submit(infer, responses.put, decoupled, executing))
        return responses

    async def _exec_async(
        self, infer: InferRequest, decoupled: bool, executing: Sequence[Request]
    ) -> InferenceResponse | ResponseIterator:
        if decoupled:
            return self._start(infer, decoupled, executing)
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

        cancel = self.submit(infer, sink, False, executing)
        try:
            return model_response(await answered)
        except asyncio.CancelledError:
            cancel()
            raise
