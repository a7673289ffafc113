"""Requests to a model of this process: what a channel is between processes, without one."""

import asyncio
import logging
from typing import Any, Final, cast

import msgspec

from app.core.errors import ErrorCode, Failure, InferError, unavailable
from app.core.failures import CANCELLED, EXPIRED
from app.core.inference import Cancel, InFlight, Sink
from app.core.tensors import InferRequest, InferResponse, failed
from app.ray_adapter.serve.replicas import ReplicaAddress
from app.routing.pool import ReplicaPool
from app.transport.channel.cancellation import AWAITED_S, cancelled_sink
from app.transport.channel.client import Channel
from app.transport.channel.deadlines import Deadlines
from app.transport.channel.server_connection import Handler
from app.transport.settings import TransportSettings

logger = logging.getLogger(__name__)

HERE: Final = "here"
"""The node of a process without a cluster, and the only replica of each of its models."""
_BROKEN_SUBMIT: Final = Failure(ErrorCode.INTERNAL, "the model failed to take the request")
_SETTINGS: Final = TransportSettings()


class LocalCall(InFlight):
    """A request in flight."""

    __slots__ = ("_channel", "_number", "bucket", "cancel_there", "submitted")

    def __init__(self, channel: "LocalChannel", number: int, request: InferRequest, sink: Sink) -> None:
        super().__init__(request, sink)
        self._channel = channel
        self._number = number
        self.bucket = 0
        self.cancel_there: Cancel | None = None
        self.submitted = False

    def cancel(self, advice: bool = False) -> None:
        """Cancel the request; see `ChannelCall.cancel`."""
        self._channel.cancel(self._number, advice)

    def receive(self, response: InferResponse) -> None:
        """Pass a response on, unless the request was cancelled or has expired."""
        if not self.submitted:  # a sink is never called before `submit` has returned
            asyncio.get_running_loop().call_soon(self.receive, response)
            return
        if not self._channel.is_open(self._number):
            return
        if response.final:
            self._channel.end(self._number)
        self.deliver(response)


class LocalChannel:
    """Has the interface of a `Channel`, and hands requests to a handler of this process by reference.

    Attributes:
        ready: whether the model reports itself ready.
    """

    local = True
    suspected = ""
    unreachable = False

    def __init__(self, handler: Handler, model: str) -> None:
        """Make a channel of the running loop; `model` is for error texts."""
        self._handler = handler
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, LocalCall] = {}
        self._next = 1
        self._deadlines = Deadlines(self._loop, _SETTINGS.deadline_grace, self._expired)
        self.ready = True
        self.draining = self.closing = False

    @property
    def outstanding(self) -> int:
        """Requests without their final response."""
        return len(self._calls)

    def send(self, request: InferRequest, sink: Sink) -> LocalCall:
        """Send a request; see `Channel.send`."""
        if self.closing or self.draining:
            raise unavailable(f"model '{self._model}' is being unloaded")
        number = self._next
        self._next = number + 1
        call = self._calls[number] = LocalCall(self, number, request, sink)
        if request.deadline:
            call.bucket = self._deadlines.add(number, request.deadline)
        try:
            call.cancel_there = self._handler.submit(request, call.receive)
        except InferError as error:
            self._loop.call_soon(call.receive, failed(error, request.id))
        except Exception:
            logger.exception("model '%s' failed on a request", self._model)
            self._loop.call_soon(call.receive, failed(_BROKEN_SUBMIT, request.id))
        call.submitted = True
        return call

    def announce(self, ready: bool) -> None:
        """Set whether the model reports itself ready."""
        self.ready = ready

    async def control(self, verb: str, payload: Any = None, timeout: float | None = None) -> Any:
        """Call a verb of the handler; see `Channel.control`."""
        async with asyncio.timeout(timeout):
            return msgspec.to_builtins(await self._handler.control(verb, payload))

    def is_open(self, number: int) -> bool:
        """Whether a request has neither ended nor been given up."""
        return number in self._calls

    def end(self, number: int) -> None:
        """Forget a request."""
        call = self._calls.pop(number)
        if call.bucket:
            self._deadlines.remove(number, call.bucket)

    def cancel(self, number: int, advice: bool = False) -> None:
        """Cancel a request; the response to a traced one is awaited, for what it says of the times."""
        call = self._calls.get(number)
        if advice:
            if call is not None and call.cancel_there is not None:
                call.cancel_there(advice)
        elif call is None or not call.request.trace:
            self.abort(number, CANCELLED)
        elif call.cancel_there is not None:  # the first time
            call.sink = cancelled_sink(call.sink)
            cancel, call.cancel_there = call.cancel_there, None
            self._loop.call_later(AWAITED_S, self.abort, number, CANCELLED)
            cancel()

    def abort(self, number: int, failure: Failure) -> None:
        """Fail a request without waiting for the model, whose further responses are ignored."""
        call = self._calls.get(number)
        if call is None:
            return
        self.end(number)
        if call.cancel_there is not None:
            call.cancel_there()
        self._loop.call_soon(call.fail, failure)

    def retire(self) -> None:
        """Accept no new requests."""
        self.draining = True

    def close(self) -> None:
        """Accept no new requests, and give up those in flight."""
        self.closing = True
        failure = Failure(ErrorCode.UNAVAILABLE, f"model '{self._model}' was unloaded")
        for number in list(self._calls):
            self.abort(number, failure)
        self._deadlines.clear()

    def _expired(self, number: int) -> None:
        self.abort(number, EXPIRED)


class LocalPool(ReplicaPool):
    """A pool of one channel, to a model of this process."""

    def __init__(self, model: str, channel: LocalChannel) -> None:
        super().__init__(model, HERE, b"", _SETTINGS)
        self._wanted = {HERE: ReplicaAddress(HERE, HERE, "", "")}
        self._add_channel(HERE, cast(Channel, channel))
