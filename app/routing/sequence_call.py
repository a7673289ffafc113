"""Finds the replica that serves a sequence, without a table shared between processes."""

import logging
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

from app.core.errors import Failure, InferError, unavailable
from app.core.failures import REPLICA_LOST
from app.core.inference import InFlight, Sink
from app.core.sequences import END_SEQUENCES, is_missing_start, missing_start
from app.core.system.tasks import Tasks
from app.core.tensors import InferRequest, InferResponse, SequenceId, failed
from app.transport.channel.client import Channel, ChannelCall

logger = logging.getLogger(__name__)

_MOST_UNTOLD: Final = 4096

Explain = Callable[[InferRequest, Failure], InferResponse]


def missing(request: InferRequest, failure: Failure, lost: bool) -> InferResponse:
    """Return the response to a request whose sequence no replica has; `lost`: a loss may be the cause."""
    if lost:
        failure = missing_start(request.model_name, request.sequence_id, REPLICA_LOST).failure
    return failed(failure, request.id)


def out_of_reach(request: InferRequest) -> InferResponse:
    """Return the response to a request whose sequence may be at a replica that is not connected now."""
    text = (
        f"inference request for sequence {request.sequence_id} to model '{request.model_name}' cannot be"
        " answered now: a replica that may have the sequence is being connected; send the request again"
    )
    return failed(unavailable(text), request.id)


def taken_out(request: InferRequest, version: int) -> InferResponse:
    """Return the response to a request whose sequence may have been at a version that is not served now."""
    text = (
        f"sequence {request.sequence_id} of model '{request.model_name}' has ended: version {version} was"
        " taken out of service, and its sequences' state with it; restart the sequence with the START flag"
    )
    return failed(unavailable(text), request.id)


def rank(replica_id: str, sequence_id: SequenceId) -> bytes:
    """Return a replica's weight for a sequence, equal in every process; the lowest is the first choice."""
    return blake2b(f"{replica_id}\0{sequence_id!r}".encode(), digest_size=8).digest()


class StaleSequences:
    """Ends sequences at the replicas that they are not at, which may have earlier ones of the same ids.

    A sequence starts at the first choice among the present replicas. Where others were present before, the
    earlier one is at another, and a request without START could reach it.
    """

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._untold: dict[Channel, dict[SequenceId, None]] = {}
        """Replicas that are being told, with what they are to be told next."""

    def started(self, channels: Sequence[Channel], sequence_id: SequenceId) -> None:
        """End a sequence that has started anew at the first of these replicas, at the others."""
        self._untold.get(channels[0], {}).pop(sequence_id, None)
        self.end(channels[1:], sequence_id)

    def end(self, channels: Iterable[Channel], sequence_id: SequenceId) -> None:
        """Tell these replicas that a sequence has ended, without waiting for them."""
        for channel in channels:
            if channel not in self._untold:
                self._untold[channel] = {}
                self._tasks.start(self._tell(channel))
            if len(self._untold[channel]) < _MOST_UNTOLD:
                self._untold[channel][sequence_id] = None

    async def _tell(self, channel: Channel) -> None:
        untold = self._untold[channel]
        try:
            while untold:
                ended = list(untold)
                untold.clear()
                await channel.control(END_SEQUENCES, ended)
        except (InferError, OSError, TimeoutError) as error:
            logger.debug("a replica was not told of sequences that have ended: %r", error)
        finally:
            del self._untold[channel]


class SequenceCall(InFlight):
    """A request that continues a sequence, retried until it reaches the replica that serves the sequence.

    That is the first choice, unless replicas were added or removed since the sequence started. Any other
    replica refuses the request before it changes anything, so that retrying is safe.

    Args:
        channels: the replicas, first choice first; not empty.
        explain: makes the response when no replica has the sequence, of the failure of the last.
        stale: ends the sequence at those that were not asked, when the request has END.

    Raises:
        InferError: UNAVAILABLE when the request cannot be sent to the first choice.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        request: InferRequest,
        sink: Sink,
        explain: Explain,
        stale: StaleSequences,
    ) -> None:
        super().__init__(request, sink)
        self._stale = stale
        self._others = iter(channels[1:])
        self._explain = explain
        self.call: ChannelCall = channels[0].send(request, self._receive)

    @property
    def channel(self) -> Channel:
        """The channel to the replica that is asked now."""
        return self.call.channel

    def _receive(self, response: InferResponse) -> None:
        failure = response.failure
        if failure is not None and is_missing_start(failure):
            other = None if self.cancelled or self.advised else next(self._others, None)
            if other is None:
                self._deliver_final(self._explain(self.request, failure))
                return
            try:
                self.call = other.send(self.request, self._receive)
                return
            except Exception as refused:
                response = failed(refused, self.request.id)
        if response.final:
            self._deliver_final(response)
        else:
            self.deliver(response)

    def _deliver_final(self, response: InferResponse) -> None:
        if self.request.sequence_end:
            self._stale.end(self._others, self.request.sequence_id)
        self.deliver(response)
