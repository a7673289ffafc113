"""Answers of v2 routes, given in the protocol of a platform."""

from collections.abc import Sequence
from typing import Final

from app.core.errors import ErrorCode, Failure
from app.core.tensors import Buffer
from app.ingress.clouds.content_type import platform_headers
from app.ingress.http1.exchange import Exchange, Route, describe_error
from app.protocol.http.v2 import JSON_HEADERS, encode_error
from app.protocol.status import http_status

OUT_OF_MEMORY: Final = 507
_REFUSALS: Final = (ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED, ErrorCode.RESOURCE_EXHAUSTED)
_MEMORY_TEXTS: Final = (
    "cuda out of memory", "cuda_out_of_memory", "out of memory", "memoryerror", "outofmemory", "OOM",
    "tensor is not initialized", "out_of_memory", "cudnn_status_not_initialized",
    "cublas_status_alloc_failed", "cublas_status_not_initialized", "failed to allocate memory",
    "no space left on device",
)  # fmt: skip
"""What frameworks say where memory is short, in lower case; the list that tritonserver looks for."""


class PlatformExchange(Exchange):
    """An exchange whose response has a platform's content type; it takes the place of the one it is made of.

    Args:
        exchange: not answered yet.
        binary: see `media_type`.
    """

    __slots__ = ("_binary",)

    def __init__(self, exchange: Exchange, binary: str) -> None:
        assert exchange._connection is not None, "a request that is started has a client"
        super().__init__(exchange._connection, exchange.head, exchange.begun)
        self._binary = binary
        exchange.on_disconnect = self.disconnect

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer]) -> None:
        """Send a whole response."""
        super().respond(status, platform_headers(headers, self._binary), parts)


class PlainExchange(PlatformExchange):
    """An exchange whose response is that of v2, as Vertex AI's: with a header of Triton's."""

    __slots__ = ()

    def respond(self, status: int, headers: bytes, parts: Sequence[Buffer]) -> None:
        """Send a whole response."""
        Exchange.respond(self, status, headers, parts)


class MultiModelExchange(PlatformExchange):
    """An exchange of SageMaker's multi-model endpoints, which have statuses of their own."""

    __slots__ = ()

    def fail(self, error: Failure | BaseException, headers: bytes = b"") -> None:
        """Answer with an error."""
        failure = describe_error(error, self.head.path)
        if failure.code in _REFUSALS:
            super().fail(failure, headers)
        elif failure.code is ErrorCode.NOT_FOUND:
            self.respond(http_status(failure), b"", ())
        else:
            self.respond(multi_model_status(failure), JSON_HEADERS, (encode_error(failure.message),))


def multi_model_status(failure: Failure) -> int:
    """Return the status of a failure by SageMaker's contract: it makes room for a model after a 507."""
    if failure.code is ErrorCode.ALREADY_EXISTS:
        return 409
    return OUT_OF_MEMORY if _is_out_of_memory(failure.message) else 400


def _is_out_of_memory(message: str) -> bool:
    lower = message.lower()
    return any(text in (message if text.isupper() else lower) for text in _MEMORY_TEXTS)


class PlatformRoute:
    """Answers by a v2 route, in a platform's protocol.

    Args:
        route: of the v2 request.
        binary: see `media_type`.
        exchange: the class of exchanges.
    """

    def __init__(self, route: Route, binary: str, exchange: type[PlatformExchange]) -> None:
        self._route = route
        self._binary = binary
        self._exchange = exchange

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        translated = self._exchange(exchange, self._binary)
        try:
            self._route.start(translated, body)
        except Exception as error:
            translated.fail(error)
