"""Finds the replica that serves a sequence, without a table shared between processes."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from app.core.errors import Failure, InferError
from app.core.inference import Sink
from app.core.sequences import is_missing_start, missing_start
from app.core.tensors import InferRequest, InferResponse, SequenceId, failed
from app.transport.channel.client import Channel, ChannelCall, no_sink

LOST: Final = (
    "a replica of the model was lost, and the state of its sequences with it; restart the sequence with the"
    " START flag"
)


def rank(replica_id: str, sequence_id: SequenceId) -> bytes:
    """Return a replica's weight for a sequence, equal in every process; the lowest is the first choice."""
    return blake2b(f"{replica_id}\0{sequence_id!r}".encode(), digest_size=8).digest()


class SequenceCall:
    """A request that continues a sequence, retried until it reaches the replica that serves the sequence.

    That is the first choice, unless replicas were added or removed since the sequence started. Any other
    replica refuses the request before it changes anything, so that retrying is safe.

    Args:
        channels: the replicas, first choice first; not empty.
        lost: whether a replica was lost recently, which the failure says when no replica has the sequence.

    Raises:
        InferError: UNAVAILABLE when the request cannot be sent to the first choice.
    """

    def __init__(self, channels: Sequence[Channel], request: InferRequest, sink: Sink, lost: bool) -> None:
        self._others = iter(channels[1:])
        self._request = request
        self._sink = sink
        self._lost = lost
        self._cancelled = False
        self._call: ChannelCall = channels[0].submit(request, self._on_response)

    def cancel(self) -> None:
        """As `Call.cancel`."""
        self._cancelled = True
        self._call.cancel()

    def _on_response(self, response: InferResponse) -> None:
        failure = response.failure
        if failure is not None and is_missing_start(failure):
            other = None if self._cancelled else next(self._others, None)
            if other is None:
                self._finish(self._refusal(failure))
                return
            try:
                self._call = other.submit(self._request, self._on_response)
                return
            except InferError as refused:
                response = failed(refused, self._request.id)
        if response.final:
            self._finish(response)
        else:
            self._sink(response)

    def _finish(self, response: InferResponse) -> None:
        sink, self._sink = self._sink, no_sink
        sink(response)

    def _refusal(self, failure: Failure) -> InferResponse:
        request = self._request
        if self._lost:
            failure = missing_start(request.model_name, request.sequence_id, LOST).failure
        return failed(failure, request.id)
