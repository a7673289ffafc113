"""One ModelStreamInfer call: serialised requests in, serialised responses out.

Responses of ordinary models are sent in the order of their requests, those of decoupled models as they
arrive. A request occupies a slot until its last response is sent. Back-pressure bounds what a slow client can
make the server buffer: no further request is read while all slots are occupied or as many responses are
buffered, and a decoupled request that goes on filling the buffer is cancelled.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns

from tritonclient.grpc import service_pb2 as pb

from app.core.errors import Failure, InferError, unavailable
from app.core.inference import Call
from app.core.tensors import Buffer, InferRequest, InferResponse, failed
from app.ingress.net.slow_clients import RESPONSE_BYTES, TOO_SLOW, SendBufferLimit
from app.ingress.net.turn import Turn
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.protocol.grpc.parameters import wants_empty_final
from app.protocol.grpc.request_message import decode_infer, parse_infer
from app.protocol.grpc.responses import encode_stream_error, encode_stream_failure
from app.routing.canary import heed_headers
from app.routing.table import NotLoaded, VersionEntry
from app.settings.fronts import StreamLimits

Encoder = Callable[[InferRequest, InferResponse, VersionEntry], bytes]
Forward = Callable[[InferRequest], InferRequest]


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream, for all its requests.

    Attributes:
        deadline: `time.monotonic` seconds at which the requests expire; 0 for none.
        fail_fast: end the stream with the first error of a model instead of sending it in-band. As in Triton,
            the error of a request that reached no model is sent in-band even so.
        forward: adds the call's metadata to a request.
        metadata: returns the call's metadata, for a rollout with header rules.
        traceparent: trace context of the client.
    """

    deadline: float = 0.0
    fail_fast: bool = False
    forward: Forward | None = None
    metadata: Callable[[], Iterable[tuple[str, str]]] = tuple
    traceparent: str = ""


@dataclass(eq=False)
class _StreamRequest:
    """A request whose last response has not been sent."""

    id: str
    # None when no version serves it: the client gets an error.
    entry: VersionEntry | None
    # Whether the client wants the empty final response.
    empty_final: bool = False
    # None until the request is decoded, and until it is submitted.
    request: InferRequest | None = None
    call: Call | None = None
    # Responses of an ordinary request that wait for those of earlier requests.
    waiting: list[InferResponse] = field(default_factory=list)
    # The last response has arrived, or the request is cancelled.
    closed: bool = False

    @property
    def decoupled(self) -> bool:
        return self.entry is not None and self.entry.decoupled

    def cancel(self) -> None:
        closed, self.closed = self.closed, True  # first: `cancel` may call the sink
        if self.call is not None and not closed:
            self.call.cancel()

    def is_empty_final(self, response: InferResponse) -> bool:
        """Return whether a response is the empty final one of a decoupled model."""
        return self.decoupled and response.is_end_of_stream


class InferStream:
    """The state of one stream; all methods run on the service's event loop."""

    def __init__(
        self,
        service: InferenceService,
        encode: Encoder,
        limits: StreamLimits,
        options: StreamOptions,
        observer: Observer,
        send_buffers: SendBufferLimit,
    ) -> None:
        """
        Args:
            service: answers requests.
            encode: serialises a response or its in-band error.
            limits: limits of this stream.
            options: options of all requests.
            observer: traces and logs requests.
            send_buffers: limit on the buffered bytes of all streams and connections.
        """
        self._service = service
        self._encode = encode
        self._limits = limits
        self._options = options
        self._observer = observer
        self._send_buffers = send_buffers
        self._is_counted = False  # `_send_buffers` counts this stream
        # Requests that occupy a slot, and the ordinary ones among them in the order of their responses.
        self._open: set[_StreamRequest] = set()
        self._ordered: deque[_StreamRequest] = deque()
        # Responses to send.
        self._ready: deque[tuple[_StreamRequest, InferResponse]] = deque()
        self._ready_bytes = 0
        # The client has sent its last request; the stream ends with an error, at once or when idle.
        self._ended = False
        self._broken: Exception | None = None
        self._draining: Failure | None = None
        self._slot_freed = asyncio.Event()
        self._changed = asyncio.Event()
        self._turn = Turn()

    async def wait_for_slot(self) -> None:
        """Wait until another request may be read."""
        limit = self._limits.requests
        while len(self._open) >= limit or len(self._ready) >= limit:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    def accept(self, data: Buffer, refused: Failure | None = None) -> None:
        """Submit a serialised ModelInferRequest; its errors become its response.

        Args:
            data: the request.
            refused: why it cannot be submitted.

        Raises:
            InferError: INTERNAL for a malformed message.
            NotLoaded: nothing was done, as an idle version must be loaded first.
        """
        message, raw = parse_infer(data)
        resolved = refused or self._resolve(message)
        pending = _StreamRequest(message.id, None if isinstance(resolved, Failure) else resolved)
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
        """Note that the client has sent its last request; requests in flight still finish."""
        self._ended = True
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """End the stream with `error`."""
        self._broken = error
        self._changed.set()

    def drain(self, reason: Failure) -> None:
        """Refuse further requests, and end the stream with `reason` once no request is in flight."""
        self._draining = reason
        self._changed.set()

    def cancel(self) -> None:
        """Cancel all requests in flight: the client has disconnected, or the stream ended early."""
        for pending in self._open:
            pending.cancel()
        self._open.clear()
        self._ordered.clear()
        self._ready.clear()
        self._ready_bytes = 0
        self._send_buffers.remove(self)

    def buffered_bytes(self) -> int:
        """Return the bytes of responses that have not been sent."""
        return self._ready_bytes + RESPONSE_BYTES * len(self._ready)

    def evict(self) -> None:
        """Cancel all requests, and end the stream with an error instead of the buffered responses."""
        self.cancel()
        self.fail(unavailable(TOO_SLOW))
        self._slot_freed.set()

    async def next(self) -> bytes | None:
        """Wait for the next message to send; None when the stream is complete.

        Raises:
            InferError: the stream must end with this error.
        """
        await self._turn.wrote(len(self._ready))
        while not self._ready:
            if self._is_complete():
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._next_message()

    def _is_complete(self) -> bool:
        if self._broken is not None:
            raise self._broken
        if self._open:
            return False
        if self._draining is not None and not self._ended:
            raise self._draining.error()
        return self._ended

    def _next_message(self) -> bytes:
        pending, response = self._ready.popleft()
        self._ready_bytes -= _byte_size(response)
        if response.final:
            self._open.discard(pending)
        self._slot_freed.set()
        if self._is_counted and not self._ready:
            self._is_counted = False
            self._send_buffers.remove(self)
        if pending.request is None or pending.entry is None or pending.call is None:
            assert response.failure is not None, "a request that reached no model has failed"
            return encode_stream_error(pending.id, response.failure)
        if self._options.fail_fast:
            response.raise_error()
        return self._encoded(pending.request, response, pending.entry)

    def _encoded(self, request: InferRequest, response: InferResponse, entry: VersionEntry) -> bytes:
        try:
            return self._encode(request, response, entry)
        except InferError as error:
            if self._options.fail_fast:
                raise
            return encode_stream_failure(request, error.failure, response.final)

    def _resolve(self, message: pb.ModelInferRequest) -> VersionEntry | Failure:
        """Return the version that serves a request, or why there is none."""
        if self._draining is not None:
            return self._draining
        try:
            return self._service.resolve(message.model_name, message.model_version)
        except NotLoaded:
            raise
        except InferError as error:
            return error.failure

    def _submit(
        self,
        pending: _StreamRequest,
        entry: VersionEntry,
        message: pb.ModelInferRequest,
        raw: Sequence[Buffer],
    ) -> None:
        pending.request = decode_infer(message, raw, self._options.deadline)
        if self._options.forward is not None:
            pending.request = self._options.forward(pending.request)
        if entry.split is not None:
            pending.request = heed_headers(entry.split, pending.request, self._options.metadata())
        pending.empty_final = wants_empty_final(message.parameters)
        sink = partial(self._receive, pending)
        if self._observer.enabled:
            arrival = RequestOrigin("grpc", monotonic_ns(), self._options.traceparent)
            pending.call = self._observer.observe(self._service, entry, pending.request, sink, arrival)
        else:
            pending.call = self._service.submit(entry, pending.request, sink)

    def _receive(self, pending: _StreamRequest, response: InferResponse) -> None:
        """Receive a response: the sink of one request."""
        if pending.closed:
            return
        pending.closed = response.final
        if pending.decoupled:
            self._buffer(pending, response)
        else:
            pending.waiting.append(response)
            self._release_in_order()
        self._changed.set()

    def _release_in_order(self) -> None:
        while self._ordered and self._ordered[0].closed:
            pending = self._ordered.popleft()
            for response in pending.waiting:
                self._buffer(pending, response)

    def _buffer(self, pending: _StreamRequest, response: InferResponse) -> None:
        if pending.is_empty_final(response):
            if not pending.empty_final:
                self._open.discard(pending)
                self._slot_freed.set()
                return
            response = _named_like(pending, response)
        if not response.final and self._is_full():
            pending.cancel()
            response = failed(unavailable(TOO_SLOW), pending.id)
        self._ready.append((pending, response))
        self._ready_bytes += _byte_size(response)
        if len(self._ready) > 1:  # the client reads more slowly than responses arrive
            self._is_counted = self._send_buffers.update(self)

    def _is_full(self) -> bool:
        limits = self._limits
        return len(self._ready) >= limits.responses or self._ready_bytes >= limits.byte_size


def _named_like(pending: _StreamRequest, response: InferResponse) -> InferResponse:
    """Return an empty final response with the model and version of the request, "" included, as in Triton."""
    assert pending.request is not None, "only a model responds"
    return InferResponse(pending.request.model_name, pending.request.model_version, final=response.final)


def _byte_size(response: InferResponse) -> int:
    return sum(len(tensor.data) for tensor in response.outputs)
