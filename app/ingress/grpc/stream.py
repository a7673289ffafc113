"""One ModelStreamInfer call: requests in, serialised responses out, in the order the protocol promises.

Responses of ordinary models leave in the order of their requests; those of decoupled models leave as they
come, between the others. A request's slot is free again once its last response was taken by the writer, so
what a slow reader can make the server hold is bounded: no further request is read while the slots are taken
or as many responses wait, and a decoupled request that goes on filling the buffer is cancelled.

Nothing here knows gRPC; `grpc_front` moves the bytes.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import Failure, InferError, unavailable
from app.core.inference import Call
from app.core.tensors import Buffer, InferRequest, InferResponse, failed
from app.ingress.net.slow_clients import RESPONSE_BYTES, TOO_SLOW, SendBufferLimit
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.protocol.grpc.parameters import wants_empty_final
from app.protocol.grpc.request_message import decode_infer
from app.protocol.grpc.request_template import parse_infer
from app.protocol.grpc.responses import encode_stream_error, encode_stream_failure
from app.routing.table import VersionEntry
from app.settings.fronts import StreamLimits

Encoder = Callable[[InferRequest, InferResponse, VersionEntry], bytes]
Forward = Callable[[InferRequest], InferRequest]


@dataclass(frozen=True)
class StreamCall:
    """What the RPC of a stream says of all its requests.

    Attributes:
        deadline: `time.monotonic` seconds at which they expire; 0 for none.
        fail_fast: end the stream with the first error of a model instead of sending it in-band. As in Triton,
            that of a request that reached no model is in-band all the same.
        forward: adds the call's metadata to a request.
        traceparent: the trace of the client that they are part of.
    """

    deadline: float = 0.0
    fail_fast: bool = False
    forward: Forward | None = None
    traceparent: str = ""


@dataclass(eq=False)
class _Pending:
    """A request whose last response the writer has not taken yet."""

    id: str
    # None when no model answers it; the client gets a refusal.
    entry: VersionEntry | None
    # Whether the client wants the empty final response.
    empty_final: bool = False
    # None until the request was decoded, and until it reached its model.
    request: InferRequest | None = None
    call: Call | None = None
    # Responses of an ordinary request that wait for their turn.
    held: list[InferResponse] = field(default_factory=list)
    # The last response came, or none is wanted any more.
    closed: bool = False

    @property
    def decoupled(self) -> bool:
        return self.entry is not None and self.entry.decoupled

    def cancel(self) -> None:
        closed, self.closed = self.closed, True  # first: the model may answer from within
        if self.call is not None and not closed:
            self.call.cancel()

    def is_empty_final(self, response: InferResponse) -> bool:
        """Whether a decoupled model only says that nothing more comes."""
        return self.decoupled and response.ends_only


class InferStream:
    """The state of one stream; every method runs on the event loop of the service's sinks."""

    def __init__(
        self,
        service: InferenceService,
        encode: Encoder,
        limits: StreamLimits,
        call: StreamCall,
        observer: Observer,
        unsent: SendBufferLimit,
    ) -> None:
        """
        Args:
            service: where requests go.
            encode: makes the message of a response, or of its in-band error.
            limits: bounds of this stream.
            call: what holds for every request.
            observer: takes note of requests.
            unsent: bounds what waits in all streams together.
        """
        self._service = service
        self._encode = encode
        self._limits = limits
        self._call = call
        self._observer = observer
        self._unsent = unsent
        self._behind = False
        # Requests under way, and of those the ordinary ones in the order their responses must leave.
        self._open: set[_Pending] = set()
        self._ordered: deque[_Pending] = deque()
        # Responses the writer may take.
        self._ready: deque[tuple[_Pending, InferResponse]] = deque()
        self._ready_bytes = 0
        # The client sent its last request; or the stream must end with an error, at once or when idle.
        self._ended = False
        self._broken: Exception | None = None
        self._draining: Failure | None = None
        self._room = asyncio.Event()
        self._news = asyncio.Event()

    async def room(self) -> None:
        """Wait until another request may be read."""
        limit = self._limits.requests
        while len(self._open) >= limit or len(self._ready) >= limit:
            self._room.clear()
            await self._room.wait()

    def accept(self, data: Buffer) -> None:
        """Start one serialised ModelInferRequest; its errors become its response.

        Raises:
            InferError: INTERNAL when `data` is no such message.
        """
        message, raw = parse_infer(data)
        resolved = self._resolve(message)
        pending = _Pending(message.id, None if isinstance(resolved, Failure) else resolved)
        self._open.add(pending)
        if not pending.decoupled:
            self._ordered.append(pending)
        if isinstance(resolved, Failure):
            self._receive(pending, failed(resolved, pending.id))
            return
        try:
            self._submit(pending, resolved, message, raw)
        except InferError as error:
            self._receive(pending, failed(error, pending.id))

    def end(self) -> None:
        """The client will send no more; what is under way still finishes."""
        self._ended = True
        self._news.set()

    def fail(self, error: Exception) -> None:
        """Reading broke: end the stream with `error`."""
        self._broken = error
        self._news.set()

    def drain(self, reason: Failure) -> None:
        """Refuse further requests, and end the stream with `reason` once nothing is under way."""
        self._draining = reason
        self._news.set()

    def cancel(self) -> None:
        """Cancel everything under way: the client is gone, or the stream ended early."""
        for pending in self._open:
            pending.cancel()
        self._open.clear()
        self._ordered.clear()
        self._ready.clear()
        self._ready_bytes = 0
        self._unsent.forget(self)

    def unsent(self) -> int:
        """Bytes of responses that the writer has not taken."""
        return self._ready_bytes + RESPONSE_BYTES * len(self._ready)

    def give_up(self) -> None:
        """Cancel everything, and end the stream with an error in place of what waits."""
        self.cancel()
        self.fail(unavailable(TOO_SLOW))
        self._room.set()

    async def next(self) -> bytes | None:
        """Wait for the next message to write; None when the stream is complete.

        Raises:
            InferError: the stream must end with this error.
        """
        while not self._ready:
            if self._is_complete():
                return None
            self._news.clear()
            await self._news.wait()
        return self._take()

    def _is_complete(self) -> bool:
        if self._broken is not None:
            raise self._broken
        if self._open:
            return False
        if self._draining is not None and not self._ended:
            raise self._draining.error()
        return self._ended

    def _take(self) -> bytes:
        pending, response = self._ready.popleft()
        self._ready_bytes -= _byte_size(response)
        if response.final:
            self._open.discard(pending)
        self._room.set()
        if self._behind and not self._ready:
            self._behind = False
            self._unsent.forget(self)
        if pending.request is None or pending.entry is None or pending.call is None:
            assert response.failure is not None, "a request that reached no model has failed"
            return encode_stream_error(pending.id, response.failure)
        if self._call.fail_fast:
            response.raise_error()
        return self._encoded(pending.request, response, pending.entry)

    def _encoded(self, request: InferRequest, response: InferResponse, entry: VersionEntry) -> bytes:
        try:
            return self._encode(request, response, entry)
        except InferError as error:
            if self._call.fail_fast:
                raise
            return encode_stream_failure(request, error.failure, response.final)

    def _resolve(self, message: pb.ModelInferRequest) -> VersionEntry | Failure:
        """Return the version that answers a request, or why none does."""
        if self._draining is not None:
            return self._draining
        try:
            return self._service.resolve(message.model_name, message.model_version)
        except InferError as error:
            return error.failure

    def _submit(
        self, pending: _Pending, entry: VersionEntry, message: pb.ModelInferRequest, raw: Sequence[Buffer]
    ) -> None:
        pending.request = decode_infer(message, raw, self._call.deadline)
        if self._call.forward is not None:
            pending.request = self._call.forward(pending.request)
        pending.empty_final = wants_empty_final(message.parameters)
        sink = partial(self._receive, pending)
        if self._observer.enabled:
            arrival = RequestOrigin("grpc", monotonic_ns(), self._call.traceparent)
            pending.call = self._observer.submit(self._service, entry, pending.request, sink, arrival)
        else:
            pending.call = self._service.submit(entry, pending.request, sink)

    def _receive(self, pending: _Pending, response: InferResponse) -> None:
        """The service's sink of one request."""
        if pending.closed:
            return
        pending.closed = response.final
        if pending.decoupled:
            self._put(pending, response)
        else:
            pending.held.append(response)
            self._release()
        self._news.set()

    def _release(self) -> None:
        while self._ordered and self._ordered[0].closed:
            pending = self._ordered.popleft()
            for response in pending.held:
                self._put(pending, response)

    def _put(self, pending: _Pending, response: InferResponse) -> None:
        if pending.is_empty_final(response):
            if not pending.empty_final:
                self._open.discard(pending)
                self._room.set()
                return
            response = _named_like(pending, response)
        if not response.final and self._is_full():
            pending.cancel()
            response = failed(unavailable(TOO_SLOW), pending.id)
        self._ready.append((pending, response))
        self._ready_bytes += _byte_size(response)
        if len(self._ready) > 1:  # the writer is behind
            self._behind = self._unsent.note(self)

    def _is_full(self) -> bool:
        limits = self._limits
        return len(self._ready) >= limits.responses or self._ready_bytes >= limits.byte_size


def _named_like(pending: _Pending, response: InferResponse) -> InferResponse:
    """As in Triton, an empty final response repeats the request's model and version, "" included."""
    assert pending.request is not None, "only a model responds"
    return InferResponse(pending.request.model_name, pending.request.model_version, final=response.final)


def _byte_size(response: InferResponse) -> int:
    return sum(len(tensor.data) for tensor in response.outputs)
