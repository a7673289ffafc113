"""Calls of a Python model to other models: from its requests to those of the server, and back."""

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Final

from app.core.errors import ErrorCode, FailureReason, InferError
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, failed
from backends.base import Request
from backends.python.errors import TritonError
from backends.python.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from backends.python.response import InferenceResponse
from backends.python.tensor import Tensor

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
        caller: name of that model.
        callers: the requests it executes.
        waits: it does nothing until the call has ended.
    """
    name, version = request.target()
    flags = request.flags()
    infers = [each.infer for each in callers]
    deadlines = [infer.deadline for infer in infers]
    return InferRequest(
        name,
        str(version) if version > 0 else "",
        tuple(tensor._to_wire(viewed=waits) for tensor in request.inputs()),
        tuple(RequestedOutput(output) for output in request.requested_output_names()),
        request.request_id(),
        json.loads(request.parameters()),
        request.correlation_id(),
        bool(flags & SEQUENCE_START),
        bool(flags & SEQUENCE_END),
        priority=min((infer.priority for infer in infers if infer.priority), default=0),
        timeout_us=request.timeout(),
        deadline=max(deadlines, default=0.0) if all(deadlines) else 0.0,
        trace=_trace(request) or next((infer.trace for infer in infers if infer.trace), ""),
        chain=tuple(dict.fromkeys((*(name for infer in infers for name in infer.chain), caller))),
    )


def _trace(request: InferenceRequest) -> str:
    """The `traceparent` that the model gave the request, if it did."""
    context = request.trace().get_context()
    return str(json.loads(context).get("traceparent", "")) if context else ""


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
