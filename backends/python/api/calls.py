"""Calls of a Python model to other models: conversion of requests and responses, `exec`, `async_exec`."""

from __future__ import annotations

import asyncio
import json
import queue
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from app.core.errors import ErrorCode, Failure, FailureReason, unsupported
from app.core.inference import Cancel
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, failed
from backends.base import Request
from backends.python.api.errors import TritonError, TritonModelException
from backends.python.api.event_loop import EventLoop
from backends.python.api.request import NO_PARAMETERS, SEQUENCE_END, SEQUENCE_START, InferenceRequest
from backends.python.api.response import InferenceResponse
from backends.python.api.server_api import executing as executing
from backends.python.api.tensor import received_tensor

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc

MAX_QUEUED: Final = 16384
"""Most responses of one call that are queued for its model."""
KEPT_BYTES: Final = 64 << 20
"""Bytes of the responses of a call that are kept for a further loop over them."""


def callers() -> tuple[Request, ...]:
    """Return the unanswered requests of the batch that makes a call."""
    return tuple([request for request in executing.get() if not request.answered])


def wire_request(
    request: InferenceRequest, caller: str, callers: Sequence[Request], waits: bool = False
) -> InferRequest:
    """Return the request in the form that the server routes.

    A call may be for any request of the batch: it has the latest of their deadlines, the highest of their
    priorities, and the trace of the one that is traced.

    Args:
        request: the request that the model made.
        caller: identifier of the model.
        callers: the requests that the model executes.
        waits: the model is blocked until the call ends, so its tensors need not be copied.
    """
    name, version = request.target()
    flags = request.flags()
    parameters = request.parameters()
    priority, deadline, trace, chain = inherited(callers)
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
        chain=(*chain, caller),
    )


def inherited(callers: Sequence[Request]) -> tuple[int, float, str, tuple[str, ...]]:
    """Return priority, deadline, trace and chain of a call for these requests."""
    if len(callers) == 1:
        infer = callers[0].infer
        return infer.priority, infer.deadline, infer.trace, infer.chain
    infers = [each.infer for each in callers]
    deadlines = [infer.deadline for infer in infers]
    return (
        min((infer.priority for infer in infers if infer.priority), default=0),
        max(deadlines, default=0.0) if all(deadlines) else 0.0,
        next((infer.trace for infer in infers if infer.trace), ""),
        _merged([infer.chain for infer in infers if infer.chain]),
    )


def _merged(chains: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return a chain with each model as often as the chain has it that has it most often."""
    counts: Counter[str] = Counter()
    for chain in chains:
        counts |= Counter(chain)
    return tuple(counts.elements())


def model_response(response: InferResponse) -> InferenceResponse:
    """Return a response in the form that the model reads."""
    if response.failure is not None:
        return InferenceResponse(error=TritonError._from_failure(response.failure))
    tensors = [received_tensor(tensor) for tensor in response.outputs]
    received = InferenceResponse(tensors)
    received._parameters = response.parameters  # those of a server's response may have floats
    return received


def too_many_queued() -> InferResponse:
    """Return the last response of a call whose caller leaves `MAX_QUEUED` responses unread."""
    text = f"more than {MAX_QUEUED} responses are queued for the caller"
    return failed(Failure(ErrorCode.UNAVAILABLE, text, FailureReason.REJECTED))


class ResponseIterator:
    """Iterator over the responses of a call with `decoupled=True`; blocks. The last may be empty.

    As Triton's, one that has ended begins again with a further loop. It keeps the responses for that, up to
    `KEPT_BYTES`: they lie in memory that other requests need.
    """

    def __init__(self) -> None:
        self._queued: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()
        self._cancel: Cancel | None = None
        self._ended = False
        self._kept: list[InferResponse] = []
        self._room = KEPT_BYTES
        self._again: Iterator[InferResponse] = iter(())

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._ended:
            if self._room < 0:
                raise TritonModelException(
                    f"the responses were of more than {KEPT_BYTES} bytes, and can be read only once"
                )
            self._again = iter(self._kept)
        return self

    def __next__(self) -> InferenceResponse:
        if self._ended:
            return model_response(next(self._again))
        response = self._queued.get()
        self._ended = response.final
        self._keep(response)
        return model_response(response)

    def _keep(self, response: InferResponse) -> None:
        self._room -= sum(len(tensor.data) for tensor in response.outputs)
        if self._room >= 0:
            self._kept.append(response)
        else:
            self._kept.clear()

    def cancel(self) -> None:
        """Tell the called model that its responses are not needed; what it responds still comes."""
        if self._cancel is not None:
            self._cancel(advice=True)

    def end(self) -> None:
        """Cancel the call without waiting for the called model."""
        if self._cancel is not None:
            self._cancel()

    def receive(self, response: InferResponse) -> None:
        """Queue a response; called on the data-plane loop."""
        if self._queued.qsize() < MAX_QUEUED or response.final:
            self._queued.put(response)
            return
        self.end()
        self._queued.put(too_many_queued())

    def set_cancel(self, cancel: Cancel) -> None:
        """Set the function that cancels the call, from any thread."""
        self._cancel = cancel


class Calls(ABC):
    """`exec` and `async_exec` in terms of one abstract method, `send`."""

    def __init__(self, caller: str) -> None:
        """Set the identifier of the calling model."""
        self.caller = caller

    @abstractmethod
    def send(
        self,
        infer: InferRequest,
        sink: Callable[[InferResponse], None],
        decoupled: bool,
        callers: Sequence[Request] = (),
    ) -> Cancel:
        """Send a request from any thread without waiting; return the function that cancels it.

        Args:
            infer: the request.
            sink: called with each response, the last of which is final and always comes; on any thread, also
                before this returns.
            decoupled: whether other responses than the final one are allowed.
            callers: the requests of this process that the call may be for.
        """

    def exec(self, request: InferenceRequest, decoupled: bool) -> InferenceResponse | ResponseIterator:
        """Send a request and return its response, or with `decoupled` an iterator over its responses."""
        executing = callers()
        infer = wire_request(request, self.caller, executing, waits=not decoupled)
        if decoupled:
            return self._start(infer, decoupled, executing)
        return model_response(self.send_and_wait(infer, executing))

    def send_and_wait(self, infer: InferRequest, callers: Sequence[Request]) -> InferResponse:
        """Send a request and return its only response."""
        responses: queue.SimpleQueue[InferResponse] = queue.SimpleQueue()
        self.send(infer, responses.put, False, callers)
        return responses.get()

    def find_model(self, name: str, version: str) -> tuple[mc.ModelConfig, int, bool]:
        """See `ServerApi.find_model`; only backends of the server's own process ask."""
        raise unsupported("models cannot be described here")

    def run(self, coroutine: Coroutine[Any, Any, Any], loop: EventLoop) -> Any:
        """Return the result of an `async def execute`; see `ServerApi.run`."""
        return loop.run(coroutine)

    def async_exec(
        self, request: InferenceRequest, decoupled: bool
    ) -> Awaitable[InferenceResponse | ResponseIterator]:
        """Return an awaitable `exec`; cancelling it cancels the request."""
        executing = callers()
        return self._exec_async(wire_request(request, self.caller, executing), decoupled, executing)

    def _start(self, infer: InferRequest, decoupled: bool, executing: Sequence[Request]) -> ResponseIterator:
        responses = ResponseIterator()
        responses.set_cancel(self.send(infer, responses.receive, decoupled, executing))
        return responses

    async def _start_async(self, infer: InferRequest, executing: Sequence[Request]) -> ResponseIterator:
        """Return the iterator once a response is there, as in Triton: until then others on the loop go on."""
        loop, arrived, responses = asyncio.get_running_loop(), asyncio.Event(), ResponseIterator()

        def receive(response: InferResponse) -> None:
            responses.receive(response)
            if not arrived.is_set():
                with suppress(RuntimeError):  # the model's loop is closed
                    loop.call_soon_threadsafe(arrived.set)

        responses.set_cancel(self.send(infer, receive, True, executing))
        try:
            await arrived.wait()
        except asyncio.CancelledError:
            responses.end()
            raise
        return responses

    async def _exec_async(
        self, infer: InferRequest, decoupled: bool, executing: Sequence[Request]
    ) -> InferenceResponse | ResponseIterator:
        if decoupled:
            return await self._start_async(infer, executing)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[InferResponse] = loop.create_future()

        def set_result(response: InferResponse) -> None:
            if not future.done():
                future.set_result(response)

        def receive(response: InferResponse) -> None:
            try:
                loop.call_soon_threadsafe(set_result, response)
            except RuntimeError:  # the model's loop is closed
                pass

        cancel = self.send(infer, receive, False, executing)
        try:
            return model_response(await future)
        except asyncio.CancelledError:
            cancel()
            raise
