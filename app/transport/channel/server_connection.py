"""The server end of one channel: the requests of one client."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.inference import Cancel, Sink, cancel_nothing
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, InferResponse, failed
from app.transport.channel.compiled_ends import server_end
from app.transport.channel.connection import Connection
from app.transport.channel.handshake import Peer
from app.transport.memory.arena import ArenaWriter
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import decode_control, encode_failure, encode_value
from app.transport.wire.frames import ADVICE, AWAITED, FAILED, Frame, Kind
from app.transport.wire.messages import decode_request

logger = logging.getLogger(__name__)

_TOO_MANY_REQUESTS: Final = Failure(
    ErrorCode.UNAVAILABLE, "Exceeds maximum queue size", FailureReason.REJECTED
)
_TOO_MANY_CONTROLS: Final = Failure(ErrorCode.UNAVAILABLE, "too many control calls at once")
_BROKEN_SUBMIT: Final = Failure(ErrorCode.INTERNAL, "the model replica failed to take the request")
_BROKEN_CONTROL: Final = Failure(ErrorCode.INTERNAL, "the model replica failed to answer")


class Handler(Protocol):
    """The replica behind a server. Called on the event loop."""

    def submit(self, request: InferRequest, sink: Sink) -> Cancel:
        """Start a request and return the function that cancels it.

        `sink` is called on the event loop, possibly before this returns, once with `final=True` and any
        number of times before that; later calls are ignored. Tensors of a reply must not change afterwards.
        The cancel function is called at most once, when the client has cancelled or is gone; replies are then
        ignored, but for the final one of a traced request. Any number of times before that it may be called
        with `advice`. A raised `InferError` becomes the final response.
        """

    async def control(self, verb: str, payload: Any) -> Any:
        """Return the answer to a verb, which msgpack can encode, or raise `InferError`."""


class Server(Protocol):
    """What has all clients of a handler."""

    handler: Handler

    def admit(self, connection: "ServerConnection") -> None:
        """Register an open connection."""

    def dismiss(self, connection: "ServerConnection") -> None:
        """Forget a connection that has ended."""


class ServerConnection(Connection):
    """One client."""

    def __init__(
        self, server: Server, settings: TransportSettings, arena: ArenaWriter | None, peer: Peer
    ) -> None:
        super().__init__(settings, arena, peer)
        self._server = server
        self._handler = server.handler
        self._streams: dict[int, Cancel] = {}
        self._controls = Tasks()
        self.use_compiled(server_end(self, self._loop, self._streams, self._handler, cancel_nothing))

    @property
    def outstanding(self) -> int:
        """Requests and control calls that have not been answered."""
        return len(self._streams) + len(self._controls)

    @property
    def awaits_more(self) -> bool:
        return self.is_only and not self._streams  # a lone client, which has been answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.admit(self)

    def _request_received(self, frame: Frame) -> None:
        stream = frame.stream
        streams = self._streams
        left_us = frame.deadline_us
        deadline = monotonic() + left_us * 1e-6 if left_us else 0.0
        request = decode_request(frame, deadline, self.peer_arena, self.borrower, self.encoder.compiled)
        if stream in streams:
            raise ProtocolError(f"stream {stream} is in use")
        streams[stream] = cancel_nothing
        sink = partial(self._deliver, stream)
        if len(streams) > self.settings.max_streams:
            sink(failed(_TOO_MANY_REQUESTS, request.id))
            return
        try:
            cancel = self._handler.submit(request, sink)
        except Exception as error:
            self._refuse(sink, request, error)
        else:
            if stream in streams:
                streams[stream] = cancel

    def _refuse(self, sink: Sink, request: InferRequest, error: Exception) -> None:
        """Answer a request with what the handler raised instead of accepting it."""
        if not isinstance(error, InferError):
            logger.error("the handler failed on a request", exc_info=error)
        sink(failed(error if isinstance(error, InferError) else _BROKEN_SUBMIT, request.id))

    def _cancel_received(self, frame: Frame) -> None:
        if frame.flags & ADVICE:
            _run(partial(self._streams.get(frame.stream, cancel_nothing), True))
            return
        cancel = self._streams.pop(frame.stream, None)
        if cancel is not None:
            if frame.flags & AWAITED:
                self._streams[frame.stream] = cancel_nothing
            _run(cancel)

    def _deliver(self, stream: int, response: InferResponse) -> None:
        if response.final:
            if self._streams.pop(stream, None) is None:
                return
        elif stream not in self._streams:
            return
        try:
            nbytes = self.encoder.response(self._out.frames, stream, response)
        except InferError as error:
            cancel = self._streams.pop(stream, None)
            if cancel is not None:  # the model may be about to send more responses
                self._loop.call_soon(_run, cancel)
            nbytes = self.encoder.response(self._out.frames, stream, failed(error, response.id))
        self.frame_queued(nbytes)
        if self._out.nbytes > self.settings.write_high_water:
            self._apply_back_pressure(nbytes)

    def _apply_back_pressure(self, newest: int) -> None:
        """Bound the send buffer; one response, the last one of `newest` bytes, may be of any size."""
        limit = self.settings.max_buffered_bytes
        if self._out.nbytes > limit and not self._paused:
            self._flush()
        if self._out.nbytes - newest > limit:
            self.abort(ConnectionError("the client does not read its responses"))
        elif self._paused and self._reading and not self.closing:
            self._reading = False
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._reading and not self.closing and not self._paused:
            self._reading = True
            self._transport.resume_reading()

    def _control_received(self, frame: Frame) -> None:
        verb, payload = decode_control(frame)
        if len(self._controls) >= self.settings.max_controls:
            self._refuse_control(frame.stream, _TOO_MANY_CONTROLS)
            return
        self._controls.start(self._control(frame.stream, verb, payload))

    def _ping_received(self, frame: Frame) -> None:
        self.send_frame(Kind.PONG)

    on_frame = {
        **Connection.on_frame,
        Kind.INFER: _request_received,
        Kind.CANCEL: _cancel_received,
        Kind.CONTROL: _control_received,
        Kind.PING: _ping_received,
    }

    async def _control(self, stream: int, verb: str, payload: Any) -> None:
        try:
            reply = await self._handler.control(verb, payload)
            self.send_frame(Kind.CONTROL_REPLY, stream, encode_value(reply))
        except InferError as error:
            self._refuse_control(stream, error.failure)
        except Exception:
            logger.exception("control verb %r failed", verb)
            self._refuse_control(stream, _BROKEN_CONTROL)

    def _refuse_control(self, stream: int, failure: Failure) -> None:
        self.send_frame(Kind.CONTROL_REPLY, stream, encode_failure(failure), FAILED)

    def connection_ended(self, cause: BaseException | None) -> None:
        self._server.dismiss(self)
        cancels = list(self._streams.values())
        self._streams.clear()
        for cancel in cancels:
            _run(cancel)
        for task in self._controls:
            task.cancel()
        if isinstance(cause, ProtocolError):
            logger.warning("a client broke the protocol: %s", cause)


def _run(cancel: Callable[[], None]) -> None:
    try:
        cancel()
    except Exception:
        logger.exception("a cancel function failed")
