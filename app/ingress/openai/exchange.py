"""Answers in the form of OpenAI's API, whoever gives them: routes, guards, restrictions."""

from collections.abc import Sequence
from typing import Final

import msgspec

from app.core.errors import Failure, InferError
from app.core.system.random_ids import random_id
from app.core.tensors import Buffer
from app.ingress.http1.exchange import Exchange, Route, describe_error
from app.protocol.http.http1 import RequestHead
from app.protocol.http.v2 import JSON_HEADERS
from app.protocol.openai.errors import Answer, answer, answer_of_status

_MAX_ID: Final = 128


class OpenAIExchange(Exchange):
    """An exchange in OpenAI's form; it takes the place of the one it is made of.

    Args:
        exchange: not answered yet.
        origin: of web pages, that may read the answer; "" for none.

    Attributes:
        request_id: the client's, or a new one.
    """

    __slots__ = ("_more", "request_id")

    def __init__(self, exchange: Exchange, origin: str) -> None:
        assert exchange._connection is not None, "a request that is started has a client"
        super().__init__(exchange._connection, exchange.head, exchange.begun)
        self.request_id = _request_id(exchange.head)
        self._more = f"x-request-id: {self.request_id}\r\n{cors_headers(origin)}".encode()
        exchange.on_disconnect = self.disconnect

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer]) -> None:
        """Send a whole response; an error of v2 becomes one of OpenAI's."""
        if status < 400:
            super().respond(status, headers + self._more, parts)
        else:
            self.refuse(answer_of_status(status, _text_of(parts)))

    def refuse(self, answer: Answer) -> None:
        """Send an error."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        super().respond(answer.status, JSON_HEADERS + lines.encode() + self._more, (answer.body,))

    def begin(self, status: int, headers: bytes) -> None:
        """Start a response of unknown length."""
        super().begin(status, headers + self._more)

    def fail(self, error: Failure | BaseException, headers: bytes = b"") -> None:
        """Answer with an error."""
        known = error if isinstance(error, InferError) else describe_error(error, self.head.path)
        self.refuse(answer(known))


def cors_headers(origin: str) -> str:
    """Return the lines by which a page of another site may read an answer; "" for no page."""
    if not origin:
        return ""
    allowed = f"Access-Control-Allow-Origin: {origin}\r\n"
    return f"{allowed}Access-Control-Expose-Headers: x-request-id\r\nVary: Origin\r\n"


def _request_id(head: RequestHead) -> str:
    given = head.get(b"x-request-id") or ""
    fits = given.isascii() and given.isprintable() and 0 < len(given) <= _MAX_ID
    return given if fits else random_id()


def _text_of(parts: Sequence[Buffer]) -> str:
    try:
        return str(msgspec.json.decode(b"".join(parts), type=dict[str, str])["error"])
    except (msgspec.DecodeError, KeyError):
        return ""


class OpenAIRoute:
    """Answers by another route, in OpenAI's form.

    Args:
        route: may be guarded.
        origin: see `OpenAIExchange`.
    """

    def __init__(self, route: Route, origin: str) -> None:
        self._route = route
        self._origin = origin

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        translated = OpenAIExchange(exchange, self._origin)
        try:
            self._route.start(translated, body)
        except Exception as error:
            translated.fail(error)


class RefusedRoute:
    """Refuses every request alike.

    Args:
        answer: the refusal.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Refuse a request, whose exchange is one of OpenAI's."""
        assert isinstance(exchange, OpenAIExchange), "OpenAIRoute is around it"
        exchange.refuse(self._answer)


class PreflightRoute:
    """Tells a browser that a page of an allowed site may ask; `origin` is that of the page."""

    def __init__(self, origin: str) -> None:
        self._headers = (
            f"{cors_headers(origin)}Access-Control-Allow-Methods: GET, POST\r\n"
            "Access-Control-Allow-Headers: *, Authorization, Content-Type\r\nAccess-Control-Max-Age: 600\r\n"
        ).encode()

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        exchange.respond(204, self._headers, ())
