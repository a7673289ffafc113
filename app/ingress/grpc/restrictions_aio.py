"""Refuses RPCs of restricted categories that come without their metadata."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import grpc
import grpc.aio

from app.protocol.restrictions import Restriction


class RestrictedProtocols(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Answers UNAVAILABLE, as tritonserver does, in place of the method, before its request is read."""

    def __init__(self, restricted: Mapping[str, Restriction]) -> None:
        self._restricted = restricted

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the method's handler or the refusal."""
        restriction = self._restricted.get(handler_call_details.method)
        if restriction is None or restriction.met_by(_sent(handler_call_details, restriction)):
            return await continuation(handler_call_details)
        return _refusal(restriction)


def _sent(details: Any, restriction: Restriction) -> bytes | None:
    wanted = restriction.header.lower()
    for name, value in details.invocation_metadata or ():
        if name == wanted:
            return value if isinstance(value, bytes) else str(value).encode()
    return None


def _refusal(restriction: Restriction) -> Any:
    async def refuse(requests: Any, context: Any) -> NoReturn:
        text = f"This protocol is restricted, expecting header '{restriction.header}'"
        await context.abort(grpc.StatusCode.UNAVAILABLE, text)
        raise AssertionError("abort raises")

    # On the wire a unary RPC is a stream of one message: this handler answers either without reading any.
    return grpc.stream_stream_rpc_method_handler(refuse)
