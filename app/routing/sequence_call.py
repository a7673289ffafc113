"""Finding the replica that has a sequence, without a table that processes would have to share."""

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
    """The weight of a replica for a sequence, the same in every process; the lowest is the first choice."""
    return blake2b(f"{replica_id}\0{sequence_id!r}".encode(), digest_size=8).digest()


class SequenceCall:
    """A request that continues a sequence, on its way to the replica that has it.

    The first choice has it unless replicas came or went since it started. A replica that has not refuses the
    request before it changes anything, so the next one can be asked.

    Args:
        channels: the replicas, first choice first; not empty.
        lost: a replica was lost lately; the client is told so when nobody has the sequence.

    Raises:
        InferError: UNAVAILABLE when the first choice cannot take the request.
    """

    def __init__(self, channels: Sequence[Channel], request: InferRequest, sink: Sink, lost: bool) -> None:
        self._others = iter(channels[1:])
        self._request = request
        self._sink = sink
        self._lost = lost
        self._cancelled = False
        self._call: ChannelCall = channels[0].submit(request, self._receive)

    def cancel(self) -> None:
        """As `Call.cancel`."""
        self._cancelled = True
        self._call.cancel()

    def _receive(self, response: InferResponse) -> None:
        failure = response.failure
        if failure is not None and is_missing_start(failure):
            other = None if self._cancelled else next(self._others, None)
            if other is None:
                self._finish(self._refusal(failure))
                return
            try:
                self._call = other.submit(self._request, self._receive)
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
