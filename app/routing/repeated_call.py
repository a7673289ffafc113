"""Sends a request again when its replica has become unreachable."""

import logging
from collections.abc import Callable

from app.core.errors import InferError
from app.core.inference import InFlight, Sink
from app.core.tensors import InferRequest, InferResponse
from app.transport.channel.client import ChannelCall

logger = logging.getLogger(__name__)

Send = Callable[[InferRequest, Sink], ChannelCall | None]
"""As `ReplicaPool.send`."""


class RepeatedCall(InFlight):
    """A request that is sent a second time, once, if its replica is stopped or out of reach.

    It has one response, and belongs to no sequence. A request whose replica crashed, or is busy for long, is
    not repeated: it may itself be the cause, and would do the same to the next replica.
    """

    __slots__ = ("_send",)

    call: ChannelCall

    def __init__(self, send: Send, request: InferRequest, sink: Sink) -> None:
        """Use `start` instead."""
        super().__init__(request, sink)
        self._send: Send | None = send

    @classmethod
    def start(cls, send: Send, request: InferRequest, sink: Sink) -> "RepeatedCall | None":
        """Send a request; return None where `send` does."""
        started = cls(send, request, sink)
        call = send(request, started._receive)
        if call is None:
            return None
        started.call = call
        return started

    def _receive(self, response: InferResponse) -> None:
        send, self._send = self._send, None
        if response.failure is not None and send is not None and self._sent_again(send):
            return
        self.deliver(response)

    def _sent_again(self, send: Send) -> bool:
        """Send the request again if its replica is unreachable and there is time; return whether it was."""
        if self.cancelled or self.advised or self.late or not self.call.channel.unreachable:
            return False
        try:
            call = send(self.request, self._receive)
        except InferError:
            return False
        except Exception:  # the client gets the failure that it has
            logger.exception("repeating a request of model '%s'", self.request.model_name)
            return False
        if call is not None:
            self.call = call
        return call is not None
