"""RPCs as they are registered."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from app.core.tensors import Buffer
from app.ingress.access.caller import GRANT, recorded
from app.ingress.access.guard import Ask
from app.ingress.http2.call import OpenCall, UnaryCall, coroutine_handler
from app.protocol.restrictions import Category


class Method(NamedTuple):
    """A gRPC method of the server.

    Attributes:
        category: the category that restricts it.
        open_call: opens a call of the method.
        names_model: whether a request names the model that it is about.
        action: what the audit calls it; "" for a method that changes nothing.
    """

    category: Category
    open_call: OpenCall
    names_model: bool = False
    action: str = ""

    @property
    def ask(self) -> Ask:
        """What a call asks for, before its message is read."""
        is_open = self.category == "health" and not self.names_model
        return Ask(self.category, action=self.action, open=is_open)


class Rpc(NamedTuple):
    """A unary RPC of protobuf messages.

    Attributes:
        category: the category that restricts it.
        handler: answers a request message.
        request_class: protobuf class of the request.
        model, region: field of the request that names the model or the memory region that it is about.
        action: what the audit calls it; "" for an RPC that changes nothing. A change of what has neither
            model nor region is one of the whole server, which a token for some models may not make.
    """

    category: Category
    handler: Callable[[Any], Awaitable[Any]]
    request_class: Any
    model: str = ""
    region: str = ""
    action: str = ""

    def method(self) -> Method:
        """Return the method that serves this RPC."""
        opens = partial(UnaryCall, coroutine_handler(self._respond))
        return Method(self.category, opens, bool(self.model), self.action)

    async def _respond(self, message: Buffer) -> bytes:
        request = self.request_class.FromString(message)
        if not getattr(request, "settings", True):  # settings are read by the RPC that changes them
            response = await self._answer(request, changes=False)
        else:
            with recorded(getattr(request, self.model or self.region, "")):
                response = await self._answer(request, bool(self.action))
        return bytes(response.SerializeToString())

    async def _answer(self, request: Any, changes: bool) -> Any:
        if (grant := GRANT.get()) is not None:
            grant.require(getattr(request, self.model, ""), whole=changes and not self.region)
            grant.outcomes.ok += 1
        return await self.handler(request)
