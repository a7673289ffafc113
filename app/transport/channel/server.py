"""The server end of channels: what a model replica holds."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol

from app.core.errors import ErrorCode, Failure, FailureReason, InferError
from app.core.files.unix_sockets import listen_unix
from app.core.inference import Cancel, Sink, cancel_nothing
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, InferResponse, failed
from app.transport.channel.compiled_ends import server_end
from app.transport.channel.connection import Connection
from app.transport.channel.handshake import Peer, check_key, greet_client
from app.transport.channel.sockets import adopt_socket, listen_tcp, tcp_address, tune_tcp
from app.transport.memory.arena import ArenaWriter
from app.transport.protocol import ProtocolError
from app.transport.settings import TransportSettings
from app.transport.wire.control_messages import decode_control, encode_failure, encode_value
from app.transport.wire.frames import ADVICE, AWAITED, FAILED, Frame, Kind
from app.transport.wire.messages import decode_request

logger = logging.getLogger(__name__)


_DEFAULTS: Final = TransportSettings()
_DRAIN_QUIET: Final = 5.0
"""Seconds without requests after which a drain is over although a client has not left.

One that is held up, say on a busy machine, has not read its last responses yet. It would lose them, and what
it has sent meanwhile, if the connection were closed here. One that hangs is given up then."""
_ACCEPT_RETRY: Final = 0.2

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


class _ServerConnection(Connection):
    """One client."""

    def __init__(
        self, server: "ChannelServer", settings: TransportSettings, arena: ArenaWriter | None, peer: Peer
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


class ChannelServer:
    """Accepts channels on unix sockets and TCP, and hands their requests to a handler."""

    def __init__(self, handler: Handler, key: bytes, settings: TransportSettings = _DEFAULTS) -> None:
        """Make a server; `key` is the shared secret of the cluster.

        Raises:
            ValueError: the key is shorter than 16 bytes.
        """
        check_key(key)
        self.handler = handler
        self.connections: set[_ServerConnection] = set()
        self._key = key
        self._settings = settings
        self._listeners: list[socket.socket] = []
        self._accepting, self._handshakes = Tasks(), Tasks()
        self._slots = asyncio.Semaphore(settings.max_handshakes)
        self._draining = False
        self._ready = True

    @property
    def outstanding(self) -> int:
        """Requests and control calls that have not been answered, over all clients."""
        return sum(connection.outstanding for connection in self.connections)

    def statistics(self) -> dict[str, int]:
        """Return gauges and counters summed over the open connections, for metrics."""
        totals = {"connections": len(self.connections), "outstanding": self.outstanding}
        for connection in self.connections:
            for name, value in connection.statistics().items():
                totals[name] = totals.get(name, 0) + value
        return totals

    async def listen(
        self, unix_path: str | None = None, tcp_host: str | None = None, tcp_port: int = 0
    ) -> list[str]:
        """Start to listen and return the addresses for `Channel.connect`, the unix one first.

        Raises:
            OSError: an address cannot be used; see `listen_unix` for the conditions on a path.
        """
        addresses = []
        if unix_path is not None:
            self._accept_on(listen_unix(unix_path))
            addresses.append(f"unix:{unix_path}")
        if tcp_host is not None:
            listener = listen_tcp(tcp_host, tcp_port)
            self._accept_on(listener)
            addresses.append(tcp_address(listener))
        return addresses

    def _accept_on(self, listener: socket.socket) -> None:
        self._listeners.append(listener)
        self._accepting.start(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, or the client has gone already: neither is a reason to stop.
                self._slots.release()
                logger.warning("cannot accept a channel: %s", error)
                await asyncio.sleep(_ACCEPT_RETRY)
                continue
            except BaseException:
                self._slots.release()
                raise
            self._handshakes.start(self._handshake(sock)).add_done_callback(lambda _: self._slots.release())

    async def _handshake(self, sock: socket.socket) -> None:
        """Shake hands with a new client and open its connection."""
        arena: ArenaWriter | None = None
        try:
            async with asyncio.timeout(self._settings.handshake_timeout):
                if len(self.connections) >= self._settings.max_connections:
                    raise ConnectionError("too many connections")
                if sock.family == socket.AF_UNIX:
                    arena = ArenaWriter(self._settings.arena_bytes) if self._settings.arena_bytes else None
                else:
                    tune_tcp(sock, self._settings)
                peer = await greet_client(sock, self._key, arena)
                connection = _ServerConnection(self, self._settings, arena, peer)
                if arena is not None:
                    arena.close_fd()
                await adopt_socket(sock, connection)
        except (OSError, ProtocolError, TimeoutError) as error:
            # Another server that starts looks whether somebody listens, and has left already.
            left = isinstance(error, BrokenPipeError | ConnectionResetError)
            level = logging.DEBUG if left else logging.WARNING
            logger.log(level, "refused a channel: %s", error or type(error).__name__)
            _discard(sock, arena)
        except BaseException:
            _discard(sock, arena)
            raise

    def admit(self, connection: _ServerConnection) -> None:
        """Register an open connection."""
        self.connections.add(connection)
        self._tell_only()
        if self._draining:
            connection.send_frame(Kind.DRAIN)
        if not self._ready:
            connection.send_frame(Kind.READINESS, flags=FAILED)

    def dismiss(self, connection: _ServerConnection) -> None:
        """Forget a connection that has ended."""
        self.connections.discard(connection)
        self._tell_only()

    def _tell_only(self) -> None:
        for connection in self.connections:
            connection.is_only = len(self.connections) == 1

    def announce(self, ready: bool) -> None:
        """Send all clients, also later ones, whether the model is ready; requests are accepted regardless."""
        self._ready = ready
        for connection in self.connections:
            connection.send_frame(Kind.READINESS, flags=0 if ready else FAILED)

    async def drain(self, timeout: float) -> bool:
        """Accept no new clients, ask the connected ones to send nothing new, and wait for their responses.

        Args:
            timeout: seconds to wait.

        Returns:
            Whether every request was answered; if not, `close` fails the rest.
        """
        self._draining = True
        await self._stop_listening()
        for connection in self.connections:
            connection.send_frame(Kind.DRAIN)
        deadline = monotonic() + timeout
        quiet_since = monotonic()
        while self.connections and monotonic() < deadline:
            if self.outstanding:
                quiet_since = monotonic()
            elif monotonic() - quiet_since > _DRAIN_QUIET:
                break
            await asyncio.sleep(0.01)
        return not self.outstanding

    async def close(self) -> None:
        """Close every connection; requests in flight are cancelled, and fail at their callers."""
        await self._stop_listening()
        await self._handshakes.cancel()
        for connection in list(self.connections):
            connection.close()
        deadline = monotonic() + 1.0
        while self.connections and monotonic() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.connections):
            connection.abort(ConnectionError("server shut down"))
        while self.connections:
            await asyncio.sleep(0)

    async def _stop_listening(self) -> None:
        await self._accepting.cancel()
        for listener in self._listeners:
            if listener.family == socket.AF_UNIX:
                _unlink(listener.getsockname())
            listener.close()
        self._listeners.clear()


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _discard(sock: socket.socket, arena: ArenaWriter | None) -> None:
    sock.close()
    if arena is not None:
        arena.close()
