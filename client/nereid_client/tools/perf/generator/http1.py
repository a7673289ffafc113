"""HTTP/1.1 with one request in flight a connection, of bytes that were made before.

An answer that came in one piece, with the very head that the last one had, needs no parser.
"""

from __future__ import annotations

import json
import re
from typing import Final

import httptools

from nereid_client.tools.perf.generator.call import Call, Owner, Wire, note_response
from nereid_client.tools.perf.generator.job import End, Endpoint

_KEPT: Final = 4096
"""Bytes of an error's body that are kept."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)(?=\r|$)", re.IGNORECASE)


class HttpConnection(Wire):
    """See `Connection`."""

    def __init__(self, owner: Owner, endpoint: Endpoint) -> None:
        super().__init__(owner)
        self._streaming = endpoint.streaming
        self._call: Call | None = None
        self._error = bytearray()
        self._event = b""
        self._late = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._parsing = False
        self._head, self._size = b"", 0

    def connection_made(self, transport: object) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.owner.opened(self, 1)

    def send(self, call: Call) -> None:
        self._call = call
        self.transport.write(call.payload)  # type: ignore[union-attr]

    def expire(self, before: int) -> None:
        if self._call is not None and self._call.sent < before:
            self._late = self.leaving = True
            self.close()

    def data_received(self, data: bytes) -> None:
        call = self._call
        if len(data) == self._size and call is not None and not self._parsing and data.startswith(self._head):
            self._call = None
            if call.body is not None:
                call.body.append(data[len(self._head) :])
            self.owner.finish(self, call)
            return
        self._parsing = True
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._end(End.CUT, f"no HTTP answer: {error}")
            self.close()
        if not self._parsing and not self._streaming:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Know the head of a whole answer again, unless it says that the connection ends, or an error."""
        head, end, body = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        whole = end and length and int(length[1]) == len(body) and not self.leaving
        if whole and head.startswith(b"HTTP/1.1 200 "):
            self._head, self._size = head + end, len(data)

    def on_body(self, data: bytes) -> None:
        """Keep what is to be looked at."""
        call = self._call
        if call is None:
            return
        if self._parser.get_status_code() != 200:
            self._error += data[: _KEPT - len(self._error)]
        elif self._streaming:
            self._events(call, data)
        elif call.body is not None:
            call.body.append(data)

    def _events(self, call: Call, data: bytes) -> None:
        """Count server-sent events, each of which ends with an empty line."""
        *events, self._event = (self._event + data).split(b"\n\n")
        for event in events:
            note_response(call, event)
            if event.startswith(b'data: {"error"'):
                self._error += event[6 : _KEPT - len(self._error)]

    def on_message_complete(self) -> None:
        """End the request."""
        self._parsing = False
        status = self._parser.get_status_code()
        keeps = self._parser.should_keep_alive()
        self.leaving = not keeps
        if status == 200 and not self._error:
            self._end(End.OK)
        else:
            text = _text(bytes(self._error))
            self._error.clear()
            self._end(End.REFUSED, f"HTTP {status}: {text}")

    def _end(self, end: End, text: str = "") -> None:
        call, self._call = self._call, None
        self._event = b""
        if call is not None:
            self.owner.finish(self, call, end, text)
        if self.leaving:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._late:
            self._end(End.LATE, "no answer in time")
        self._end(End.CUT, f"connection lost: {error or 'closed by the server'}")
        self.owner.lost(self)


def _text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def http_request(endpoint: Endpoint, headers: dict[str, str], body: bytes) -> bytes:
    """Return a whole request."""
    lines = [
        f"POST {endpoint.path} HTTP/1.1",
        f"Host: {endpoint.host}:{endpoint.port}",
        *(f"{name}: {value}" for name, value in {**headers, **dict(endpoint.headers)}.items()),
    ]
    if not any(name.lower() == "content-length" for name in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
