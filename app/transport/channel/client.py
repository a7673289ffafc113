"""The client end of a channel: an ingress, or a replica that calls other models, has one per replica."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from time import monotonic
from typing import Any, Final

from app.core.errors import ErrorCode, Failure, FailureReason, InferError, unavailable
from app.core.failures import CANCELLED, EXPIRED
from app.core.inference import Sink, no_sink
from app.core.tensors import InferRequest, failed
from app.transport.channel.cancellation import AWAITED_S, cancelled_sink
from app.transport.channel.compiled_ends import client_end
from app.transport.channel.connection import Connection
from app.transport.channel.deadlines import Deadlines
from app.transport.channel.handshake import Peer, check_key, greet_server
from app.transport.channel.heartbeat import Excuse, Silence, is_suspect
from app.transport.channel.peer_process import PeerProcess
from app.transport.channel.sockets import adopt_socket, open_socket
from app.transport.memory.arena import ArenaWriter
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import decode_failure, decode_value, encode_control
from app.transport.wire.frames import ADVICE, AWAITED, FAILED, FINAL, Frame, Kind
from app.transport.wire.messages import decode_response

"""Message of the UNAVAILABLE error when a replica has not answered by the request's deadline."""

_LONGEST_DEADLINE: Final = 7 * 86400.0  # a deadline further away is not sent
_DEFAULTS: Final = TransportSettings()


def lost_message(cause: str) -> str:
    """Return the default message for requests whose connection is lost, or that its replica cannot answer."""
    return f"connection to model replica lost: {cause}"


class ChannelCall:
    """A request in flight on a channel."""

    __slots__ = ("_stream", "bucket", "channel", "request_id", "sink")

    def __init__(self, channel: "Channel", stream: int, sink: Sink, request_id: str) -> None:
        self.channel = channel
        self._stream = stream
        self.sink = sink
        self.request_id = request_id
        self.bucket = 0

    def cancel(self, advice: bool = False) -> None:
        """Cancel the request: the sink gets a CANCELLED failure, unless it had its final response.

        The sink is not called before this returns; that of a traced request in some seconds, with timestamps.
        """
        self.channel._cancel(self._stream, advice)


class Channel(Connection):
    """One multiplexed connection to a model replica. Belongs to the event loop that opened it.

    Every submitted request gets exactly one final response, even when the connection is lost.

    Attributes:
        ready: the replica reports its model ready, and is not suspected.
        suspected: why the replica is to be avoided: it does not answer, or has ended. "" when it answers.
        unreachable: the replica is known to be unable to answer, not just busy: requests fail.
    """

    def __init__(
        self,
        address: str,
        settings: TransportSettings,
        arena: ArenaWriter | None,
        peer: Peer,
        process: PeerProcess,
        on_close: "Callable[[Channel, BaseException | None], None] | None",
        on_readiness: "Callable[[Channel], None] | None",
        lost_text: Callable[[str], str],
        ask_busy: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Use `Channel.connect` instead."""
        super().__init__(settings, arena, peer)
        self.address = address
        self.draining = False
        self.ready = True
        self.suspected = ""
        self.unreachable = False
        self._process = process
        self._reports_ready = True
        self._silence = Silence(settings.heartbeat, self._loop.time())
        self._excuse = Excuse(ask_busy, settings.heartbeat) if ask_busy is not None else None
        self._beat_timer: asyncio.TimerHandle | None = None
        self._on_close = on_close
        self._on_readiness = on_readiness
        self._lost_text = lost_text
        self._calls: dict[int, ChannelCall] = {}
        self._traced: dict[int, bool] = {}  # whether each of the traced ones is cancelled
        self._controls: dict[int, asyncio.Future[Any]] = {}
        self._deadlines = Deadlines(self._loop, settings.deadline_grace, self._expired)
        self._end = client_end(self, self._loop, self._calls, self._deadlines, ChannelCall, no_sink)
        self.use_compiled(self._end)

    @property
    def awaits_more(self) -> bool:
        return bool(self._calls)

    @classmethod
    async def connect(
        cls,
        address: str,
        key: bytes,
        settings: TransportSettings = _DEFAULTS,
        *,
        on_close: "Callable[[Channel, BaseException | None], None] | None" = None,
        on_readiness: "Callable[[Channel], None] | None" = None,
        lost_text: Callable[[str], str] = lost_message,
        ask_busy: Callable[[], Awaitable[bool]] | None = None,
    ) -> "Channel":
        """Open a channel to `unix:/path` or `tcp:host:port`.

        Args:
            address: as `ChannelServer.listen` returned it.
            key: the shared secret of the cluster, at least 16 bytes.
            settings: bounds of this end.
            on_close: called once when the channel has ended, after every outstanding request has failed; its
                second argument is None when this side closed it, as it does after a drain.
            on_readiness: called when `ready` or `suspected` has changed.
            lost_text: makes the message of these failures from a cause, so that it can name the model.
            ask_busy: asks another process whether the replica, which is silent, executes its model.

        Raises:
            ConnectionError: the replica cannot be reached, refused the key or failed to prove its own.
            TimeoutError: no answer within `connect_timeout`.
            ValueError: the address or key is malformed.
        """
        check_key(key)
        make = partial(cls, address, settings, ask_busy=ask_busy, lost_text=lost_text)
        make = partial(make, on_close=on_close, on_readiness=on_readiness)
        async with asyncio.timeout(settings.connect_timeout):
            try:
                return await _open_channel(address, key, settings, make)
            except ProtocolError as error:
                raise ConnectionError(f"{address}: {error}") from error

    @property
    def local(self) -> bool:
        """Whether the replica runs on this node."""
        return self.address.startswith("unix:")

    @property
    def outstanding(self) -> int:
        """Requests without their final response."""
        return len(self._calls)

    def send(self, request: InferRequest, sink: Sink) -> ChannelCall:
        """Send a request. Returns at once, and the sink is not called before that.

        Tensor data must not change until the final response: large tensors may be read from later.

        Raises:
            InferError: UNAVAILABLE when the channel is closed, draining or has too much waiting to be sent;
                INVALID_ARG when the request has no encoding. The sink is then never called.
        """
        sent: ChannelCall | None = None if self._end is None else self._end.send(request, sink)
        if sent is not None:
            return sent
        if self.closing or self.draining or self._out.nbytes > self.settings.max_buffered_bytes:
            raise self._refusal()
        stream = self._out.last_stream + 1
        left_us = 0
        if request.deadline:
            left = request.deadline - monotonic()
            left_us = int(max(left * 1e6, 1.0)) if left < _LONGEST_DEADLINE else 0
        self.frame_queued(self.encoder.request(self._out.frames, stream, request, left_us))
        self._out.last_stream = stream
        call = self._calls[stream] = ChannelCall(self, stream, sink, request.id)
        if request.trace:
            self._traced[stream] = False
        if left_us:
            call.bucket = self._deadlines.add(stream, request.deadline)
        return call

    def _refusal(self) -> InferError:
        if self.closing:
            return unavailable(self._lost_text("closed"))
        if self.draining:
            return unavailable(self._lost_text("the replica is shutting down"))
        message = "too many bytes wait to be sent to the model"
        return InferError(ErrorCode.UNAVAILABLE, message, FailureReason.REJECTED)

    async def control(self, verb: str, payload: Any = None, timeout: float | None = None) -> Any:
        """Call a verb of the replica's handler with a msgpack-able argument and return what it returned.

        Raises:
            InferError: what the handler raised; UNAVAILABLE when the channel is or gets closed.
            TimeoutError: no answer within `timeout`, by default `control_timeout` seconds.
            TypeError, ValueError: the argument has no msgpack encoding or is too large.
        """
        if self.closing:
            raise self._refusal()
        stream = self._out.last_stream = self._out.last_stream + 1
        self.send_frame(Kind.CONTROL, stream, encode_control(verb, payload))
        reply = self._controls[stream] = self._loop.create_future()
        try:
            async with asyncio.timeout(self.settings.control_timeout if timeout is None else timeout):
                return await reply
        finally:
            self._controls.pop(stream, None)
            self._close_if_drained()

    def _response_received(self, frame: Frame) -> None:
        # Decoded even for a cancelled request: that releases its shared memory.
        response = decode_response(frame, self.peer_arena, self.borrower, self.encoder.compiled)
        stream = frame.stream
        call = self._calls.get(stream)
        if call is None:
            return
        sink = call.sink
        if frame.flags & FINAL:
            del self._calls[stream]
            self._traced.pop(stream, None)
            if call.bucket:
                self._deadlines.remove(stream, call.bucket)
            call.sink = no_sink
        try:
            sink(response)
        except Exception as error:
            self._report(error)
        if self.draining:
            self._close_if_drained()

    def _control_reply_received(self, frame: Frame) -> None:
        reply = self._controls.get(frame.stream)
        if reply is None or reply.done():
            return
        if frame.flags & FAILED:
            reply.set_exception(decode_failure(frame).error())
        else:
            reply.set_result(decode_value(frame))

    def _readiness_received(self, frame: Frame) -> None:
        self._reports_ready = not frame.flags & FAILED
        self._update_readiness()

    def _update_readiness(self) -> None:
        self.ready = self._reports_ready and not self.suspected
        if self._on_readiness is not None:
            self._on_readiness(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._beat_timer = self._loop.call_later(self.settings.heartbeat, self._beat)

    def _beat(self) -> None:
        """Judge the replica by its silence, and ping it."""
        period = self.settings.heartbeat
        unsent = self._transport.get_write_buffer_size()
        silence = self._silence.at_beat(self._loop.time(), self._decoder.unparsed, unsent)
        if is_suspect(silence, period):
            self._suspect(silence)
        self.send_frame(Kind.PING)
        self._beat_timer = self._loop.call_later(period, self._beat)

    def _suspect(self, silence: float) -> None:
        """Have the replica avoided, and fail its requests unless it may just be busy executing a model."""
        obstacle = self._process.obstacle()
        if self._excuse is not None and not obstacle:
            silence = self._excuse.unexplained(silence, self._loop.time())
            if not silence:
                return
        self.unreachable = bool(obstacle)
        self.suspected = f"no answer for {silence:.0f} s" + (f", {obstacle}" if obstacle else "")
        self._update_readiness()
        if obstacle or silence > self.settings.peer_timeout:
            failure = Failure(ErrorCode.UNAVAILABLE, self._lost_text(self.suspected))
            for stream in list(self._calls):
                self._abort_request(stream, failure)

    def _pong_received(self, frame: Frame) -> None:
        self._silence.heard(self._loop.time())
        if self._excuse is not None:
            self._excuse.reset()
        if self.suspected:
            self.suspected, self.unreachable = "", False
            self._update_readiness()

    def _drain_received(self, frame: Frame) -> None:
        self.retire()

    on_frame = {
        **Connection.on_frame,
        Kind.RESPONSE: _response_received,
        Kind.CONTROL_REPLY: _control_reply_received,
        Kind.READINESS: _readiness_received,
        Kind.DRAIN: _drain_received,
        Kind.PONG: _pong_received,
    }

    def retire(self) -> None:
        """Accept no new requests, and close once those in flight are answered."""
        self.draining = True
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self.draining and not self._calls and not self._controls:
            self.close()

    def _cancel(self, stream: int, advice: bool) -> None:
        if advice:
            if stream in self._calls:
                self.send_frame(Kind.CANCEL, stream, flags=ADVICE)
        elif stream not in self._traced:
            self._abort_request(stream, CANCELLED)
        elif not self._traced[stream]:
            self._traced[stream] = True
            call = self._calls[stream]
            call.sink = cancelled_sink(call.sink)
            self.send_frame(Kind.CANCEL, stream, flags=AWAITED)
            self._loop.call_later(AWAITED_S, self._abort_request, stream, CANCELLED)

    def _expired(self, stream: int) -> None:
        self._abort_request(stream, EXPIRED)

    def _abort_request(self, stream: int, failure: Failure) -> None:
        """Fail a request without waiting for the replica, whose further responses are discarded."""
        call = self._calls.pop(stream, None)
        if call is None:
            return
        self._traced.pop(stream, None)
        if call.bucket:
            self._deadlines.remove(stream, call.bucket)
        self.send_frame(Kind.CANCEL, stream)
        self._loop.call_soon(self._fail, call, failure)

    def _fail(self, call: ChannelCall, failure: Failure) -> None:
        sink, call.sink = call.sink, no_sink
        try:
            sink(failed(failure, call.request_id))
        except Exception as raised:
            self._report(raised)
        self._close_if_drained()

    def eof_received(self) -> None:
        # In order, a replica drains and the client closes: a replica that closes first is lost.
        self._cause = self._cause or ConnectionResetError("closed by the replica")

    def connection_ended(self, cause: BaseException | None) -> None:
        self._deadlines.clear()
        if self._beat_timer is not None:
            self._beat_timer.cancel()
        self.suspected = (self._process.end() or str(cause) or type(cause).__name__) if cause else "closed"
        self._process.close()
        failure = Failure(ErrorCode.UNAVAILABLE, self._lost_text(self.suspected))
        calls = list(self._calls.values())
        self._calls.clear()
        self._traced.clear()
        for call in calls:
            self._fail(call, failure)
        for reply in self._controls.values():
            if not reply.done():
                reply.set_exception(failure.error())
        if self._on_close is not None:
            self._on_close(self, cause)

    def _report(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "a response sink raised", "exception": error})


async def _open_channel(
    address: str, key: bytes, settings: TransportSettings, make: Callable[..., Channel]
) -> Channel:
    """Connect, shake hands and make the channel; nothing is left open on failure."""
    with ExitStack() as on_failure:
        sock = await open_socket(address, settings)
        on_failure.callback(sock.close)
        arena: ArenaWriter | None = None
        if sock.family == socket.AF_UNIX and settings.arena_bytes:
            arena = ArenaWriter(settings.arena_bytes)
            on_failure.callback(arena.close)
        peer = await greet_server(sock, key, arena)
        process = PeerProcess(sock)
        on_failure.callback(process.close)
        channel = make(arena=arena, peer=peer, process=process)
        if arena is not None:
            arena.close_fd()
        await adopt_socket(sock, channel)
        on_failure.pop_all()
    return channel
