"""One RPC as it is registered."""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from app.protocol.restrictions import Category


class Rpc(NamedTuple):
    """A unary RPC.

    Attributes:
        category: the category that restricts it.
        handler: answers a request message.
        request_class: protobuf class of the request; None if the handler reads and returns bytes.
    """

    category: Category
    handler: Callable[[Any], Awaitable[Any]]
    request_class: Any = None
