"""Sends a request again when its replica has become unreachable."""

from time import monotonic

from app.core.errors import InferError
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse
from app.routing.pool import ReplicaPool
from app.transport.channel.client import ChannelCall, no_sink


class RepeatedCall:
    """A request that is sent a second time, once, if its replica is stopped or out of reach.

    It has one response, and belongs to no sequence. A request whose replica crashed, or is busy for long, is
    not repeated: it may itself be the cause, and would do the same to the next replica.
    """

    def __init__(self, pool: ReplicaPool, request: InferRequest, sink: Sink) -> None:
        """Use `start` instead."""
        self._sink = sink
        self._call: ChannelCall | None = None
        self._again: tuple[ReplicaPool, InferRequest] | None = (pool, request)

    @classmethod
    def start(cls, pool: ReplicaPool, request: InferRequest, sink: Sink) -> "RepeatedCall | None":
        """Send a request; see `ReplicaPool.submit`."""
        started = cls(pool, request, sink)
        started._call = pool.submit(request, started._on_response)
        return started if started._call is not None else None

    def cancel(self, advice: bool = False) -> None:
        """As `Call.cancel`."""
        self._again = None
        if self._call is not None:
            self._call.cancel(advice)

    def _on_response(self, response: InferResponse) -> None:
        again, self._again = self._again, None
        if response.failure is not None and again is not None and self._sent(*again):
            return
        sink, self._sink = self._sink, no_sink
        sink(response)

    def _sent(self, pool: ReplicaPool, request: InferRequest) -> bool:
        """Send the request again if its replica is unreachable and there is time; return whether it was."""
        call = self._call
        if call is None or not call.channel.unreachable or 0 < request.deadline <= monotonic():
            return False
        try:
            self._call = pool.submit(request, self._on_response)
        except InferError:
            return False
        return self._call is not None
