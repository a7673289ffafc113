"""RPCs as they are registered."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from app.core.tensors import Buffer
from app.ingress.http2.call import OpenCall, UnaryCall, coroutine_handler
from app.protocol.restrictions import Category


class Method(NamedTuple):
    """A gRPC method of the server.

    Attributes:
        category: the category that restricts it.
        open_call: opens a call of the method.
    """

    category: Category
    open_call: OpenCall


class Rpc(NamedTuple):
    """A unary RPC of protobuf messages.

    Attributes:
        category: the category that restricts it.
        handler: answers a request message.
        request_class: protobuf class of the request.
    """

    category: Category
    handler: Callable[[Any], Awaitable[Any]]
    request_class: Any

    def method(self) -> Method:
        """Return the method that serves this RPC."""
        return Method(self.category, partial(UnaryCall, coroutine_handler(self._respond)))

    async def _respond(self, message: Buffer) -> bytes:
        response = await self.handler(self.request_class.FromString(message))
        return bytes(response.SerializeToString())
