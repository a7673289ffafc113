"""Routes of other servers' protocols: a task answers each request, and ends when its client leaves."""

import asyncio
from abc import ABC, abstractmethod

from app.core.errors import internal
from app.core.tensors import InferRequest, InferResponse
from app.ingress.http1.exchange import Exchange
from app.ingress.rest.context import RouteContext
from app.routing.table import VersionEntry


class TaskRoute(ABC):
    """Answers requests by a coroutine.

    Args:
        context: of the front.
    """

    def __init__(self, context: RouteContext) -> None:
        self.context = context

    def start(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request."""
        exchange.on_disconnect = self.context.tasks.start(self._run(exchange, body)).cancel

    async def _run(self, exchange: Exchange, body: memoryview) -> None:
        try:
            await self.respond(exchange, body)
        except Exception as error:
            exchange.fail(error)

    @abstractmethod
    async def respond(self, exchange: Exchange, body: memoryview) -> None:
        """Answer a request; an exception is answered as an error."""

    async def infer(
        self, exchange: Exchange, entry: VersionEntry, request: InferRequest, traceparent: str = ""
    ) -> InferResponse:
        """Return the one response to a request; cancel it with the task.

        Raises:
            InferError: the inference failed, or had another number of responses.
        """
        single = SingleResponse()
        call = self.context.send(exchange, entry, request, single.receive, traceparent)
        try:
            return await single.future
        finally:
            if not single.future.done() or single.future.cancelled():
                call.cancel()


class SingleResponse:
    """The sink of an inference with one response.

    Attributes:
        future: gets the response, or the failure as an exception.
    """

    def __init__(self) -> None:
        self.future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        self._held: InferResponse | None = None
        self._count = 0

    def receive(self, response: InferResponse) -> None:
        if not response.is_end_of_stream:
            self._held = self._held or response
            self._count += 1
        if not response.final or self.future.done():
            return
        if self._held is None or self._count != 1:
            self.future.set_exception(internal(f"expected a single response, got {self._count}"))
        elif self._held.failure is not None:
            self.future.set_exception(self._held.failure.error())
        else:
            self.future.set_result(self._held)
