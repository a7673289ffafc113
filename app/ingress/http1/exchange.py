"""One HTTP request and its response."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from app.core.errors import ErrorCode, Failure, InferError
from app.core.tensors import Buffer
from app.protocol.http.http1 import CONTINUE, RequestHead, response_head
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.status import http_headers, http_status

logger = logging.getLogger(__name__)

_COMMENT: Final = b":\n\n"
"""In a stream of events."""
_JOIN_LIMIT: Final = 16 << 10
"""Bytes up to which joining parts costs less than writing them separately."""


class Connection(Protocol):
    """A connection as its exchanges use it."""

    keeps_alive: bool

    def peer(self) -> str: ...

    def write(self, data: Buffer) -> None: ...

    def write_parts(self, parts: Sequence[Buffer]) -> None: ...

    async def drained(self) -> None: ...

    def exchange_done(self, keep_alive: bool) -> None: ...

    def abort(self) -> None: ...


class Recognised(Protocol):
    """A request that a recogniser has read whole: Python has not."""

    @property
    def owner(self) -> Any: ...

    def disconnect(self) -> None:
        """Handle that the client has disconnected."""


class Recogniser(Protocol):
    """Reads whole requests whose heads, but for headers that decide nothing, are known."""

    @property
    def match(self) -> Callable[[bytes, Any], Recognised | None]:
        """Return the request that some received bytes are, for a connection, if they are one and no more."""

    def learn(self, routed: Any, data: bytes, head_size: int) -> None:
        """Read requests with a head like that of this one, which Python has read, from now on."""


class Route(Protocol):
    """Answers requests. Made from a request head alone, shared by all requests with the same head."""

    def start(self, exchange: "Exchange", body: memoryview) -> None:
        """Start to answer a request. An exception is answered as an error."""


def _nothing() -> None:
    pass


class Exchange:
    """One request and its response.

    Either call `respond` once, or `begin`, any number of `send` and one `finish`. All of them do nothing once
    the client has disconnected.
    """

    __slots__ = ("_connection", "_keep_alive", "_pending_head", "_stream", "begun", "head", "on_disconnect")

    def __init__(self, connection: Connection, head: RequestHead, begun: float = 0.0) -> None:
        """`begun` is the loop time at which the request began to arrive; 0 if it arrived in one piece."""
        self.head = head
        self.begun = begun
        self._stream: bytes | None = None
        self.on_disconnect: Callable[[], object] = _nothing
        self._connection: Connection | None = connection
        self._keep_alive = head.keep_alive
        self._pending_head = b""

    @property
    def closed(self) -> bool:
        """Whether the client has disconnected or was answered."""
        return self._connection is None

    def peer(self) -> str:
        """Return the client's address; "" once it has disconnected or was answered."""
        return "" if self._connection is None else self._connection.peer()

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer]) -> None:
        """Send a whole response; `headers` are complete lines, without those about framing."""
        connection = self._connection
        if connection is None:
            return
        size = 0
        for part in parts:
            size += len(part)
        keep_alive = self._keep_alive and connection.keeps_alive
        head = response_head(status, self._extra(headers, keep_alive), size, keep_alive)
        if self.head.method == "HEAD":
            parts = ()
        if size <= _JOIN_LIMIT:
            connection.write(b"".join((head, *parts)))
        else:
            connection.write_parts((head, *parts))
        self._end(connection, keep_alive)

    def fail(self, error: Failure | BaseException, headers: bytes = b"") -> None:
        """Answer with an error; see `describe_error`."""
        failure = describe_error(error, self.head.path)
        for name, value in http_headers(failure).items():
            headers += f"{name}: {value}\r\n".encode()
        self.respond(http_status(failure), JSON_HEADERS + headers, (encode_error(failure.message),))

    def begin(self, status: int, headers: bytes) -> None:
        """Start a response of unknown length; its head is sent with its first piece."""
        connection = self._connection
        if connection is None:
            return
        self._stream = _COMMENT if b"text/event-stream" in headers else b""
        self._keep_alive = self._keep_alive and connection.keeps_alive and self.head.version == "1.1"
        head = response_head(status, self._extra(headers, self._keep_alive), None, self._keep_alive)
        if self.head.version != "1.1":
            head = head.replace(b"Transfer-Encoding: chunked\r\n", b"")
        self._pending_head = head

    def send(self, data: Buffer) -> None:
        """Send a piece of a started response, in one write."""
        if self._connection is not None and data:
            self._write(self._connection, self._framed(data))

    def _framed(self, data: Buffer) -> tuple[Buffer, ...]:
        return (b"%x\r\n" % len(data), data, b"\r\n") if self.head.version == "1.1" else (data,)

    def _write(self, connection: Connection, parts: tuple[Buffer, ...]) -> None:
        head, self._pending_head = self._pending_head, b""
        connection.write(b"".join((head, *parts)))

    def question(self) -> bytes:
        """Return what may be written now and says nothing to a client that reads; b"" for nothing."""
        if self._stream is None:
            return CONTINUE if self.head.version == "1.1" else b""
        return b"" if self._pending_head or not self._stream else b"".join(self._framed(self._stream))

    async def drained(self) -> None:
        """Wait until the transport accepts more data, or the client has disconnected."""
        if self._connection is not None:
            await self._connection.drained()

    def finish(self, data: Buffer = b"") -> None:
        """End a started response, with a last piece if there is one, in one write."""
        connection = self._connection
        if connection is None:
            return
        end = b"0\r\n\r\n" if self.head.version == "1.1" else b""
        self._write(connection, (*self._framed(data), end) if data else (end,))
        # The server may have started to drain after the head promised keep-alive.
        self._end(connection, self._keep_alive and connection.keeps_alive)

    def abort(self) -> None:
        """Abort the connection: a started response cannot be completed."""
        if self._connection is not None:
            self._connection.abort()

    def disconnect(self) -> None:
        """Handle that the client has disconnected."""
        self._connection = None
        self.on_disconnect()
        self.on_disconnect = _nothing

    def _extra(self, headers: bytes, keep_alive: bool) -> bytes:
        if keep_alive and self.head.version == "1.0":
            return headers + b"Connection: Keep-Alive\r\n"
        return headers

    def _end(self, connection: Connection, keep_alive: bool) -> None:
        self._connection = None
        self.on_disconnect = _nothing  # breaks a reference cycle
        connection.exchange_done(keep_alive)


def describe_error(error: Failure | BaseException, path: str) -> Failure:
    """Return the failure to answer with; log other exceptions than `InferError` and hide their text."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, InferError):
        return error.failure
    logger.error("unexpected error answering %s", path, exc_info=error)
    return Failure(ErrorCode.INTERNAL, "unexpected error, the request could not be answered")


class FixedRoute:
    """Answers every request alike."""

    def __init__(self, status: int, headers: bytes, body: bytes) -> None:
        self.status = status
        self._response = (status, headers, (body,))

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        exchange.respond(*self._response)


class FailedRoute:
    """Answers every request with an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        exchange.fail(self._error)


METHOD_NOT_ALLOWED: Final = FixedRoute(405, JSON_HEADERS, encode_error("Method Not Allowed"))
