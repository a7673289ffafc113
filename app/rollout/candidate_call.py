"""A request at the candidate of a rollout, which the stable version answers if the candidate does not."""

import asyncio
import logging
from time import monotonic
from typing import Final, Protocol

from msgspec.structs import replace

from app.core.errors import ErrorCode, Failure, InferError, unavailable
from app.core.inference import Call, InFlight, Sink, no_sink
from app.core.tensors import InferRequest, InferResponse, failed
from app.rollout import counted_call
from app.rollout.answer import Answer
from app.rollout.counted_call import expired, hanging
from app.rollout.tally import is_servers
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

_MOST_COPIED: Final = 1 << 20
"""Bytes of a calling model's tensors that are copied for two versions."""


class Versions(counted_call.Versions, Protocol):
    """The two versions, as a request at the candidate uses them."""

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request of one of the two versions."""

    def count_repeated(self, answered: bool) -> None:
        """Count a request that the candidate failed, and the stable version then answered or failed too."""

    def may_repeat(self, hedge: bool = False) -> bool:
        """Return whether a request may be repeated now; a `hedge` only while there is plenty of room."""


class CandidateCall(InFlight):
    """A request at the candidate that is repeated once at the stable version when the candidate fails it.

    It is repeated when the candidate fails or refuses it, hangs, or is withdrawn; and, while the candidate
    may still answer, when it is late, or half of the time to the deadline has passed. The first answer is the
    client's; what the candidate does later still counts. A stream is the version's whose response came first:
    from then on it is not repeated. It belongs to no sequence.
    """

    def __init__(
        self,
        versions: Versions,
        candidate: VersionEntry,
        request: InferRequest,
        sink: Sink,
        may_repeat: bool = True,
    ) -> None:
        """Use `start` instead."""
        super().__init__(request, sink)
        self._versions = versions
        self._candidate = candidate
        # Two replicas must not write to a client's memory, nor one read that of a calling model that goes on.
        self._may_hedge = not request.regions
        if request.chain and self._may_hedge:
            self.request = _copied(request)
            self._may_hedge = self.request is not request
        self._begun = monotonic()
        self._answers = Answer(request), Answer(request)
        """The candidate's and the stable version's."""
        self._repeated: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._may_repeat = may_repeat
        self._silent = self._failed = False
        self._expired: Failure | None = None
        self._refusal: tuple[Failure, float] | None = None
        """What the candidate has refused, and after how long, until the stable version has answered."""
        self.heard = 0.0
        self.hurried = False

    @classmethod
    def start(
        cls,
        versions: Versions,
        candidate: VersionEntry,
        request: InferRequest,
        sink: Sink,
        may_repeat: bool = True,
    ) -> "CandidateCall":
        """Ask the candidate; raise as `Target.submit` when neither version can be asked."""
        call = cls(versions, candidate, request, sink, may_repeat)
        try:
            call.call = versions.send(candidate, call.request, call._receive)
        except InferError as error:
            call._count(error.failure)
            if not call._repeat():
                call._settle(None)
                raise
        else:
            versions.flights.add(call)
            call._watch_time()
        return call

    def cancel(self, advice: bool = False) -> None:
        self._may_repeat = False
        self._expired = None if advice else expired(self.request)
        super().cancel(advice)
        if self._repeated is not None:
            self._repeated.cancel(advice)

    def note_late(self) -> None:
        """As `Flight.note_late`."""
        if not self._silent:
            self._silent = True
            self._versions.count_late(is_candidate=True)
        if self._may_hedge:
            self._repeat(hedge=True)

    def note_hang(self, seconds: float) -> None:
        """As `Flight.note_hang`."""
        failure = hanging(self._candidate, seconds)
        if self.hurried:
            failure = unavailable(self._versions.flights.withdrawn).failure
        else:
            self._count(failure)
        self._cut()
        self._deliver_failure(failed(failure, self.request.id))

    def withdraw(self) -> None:
        """As `Flight.withdraw`."""
        if self.ended or self._repeated is not None or self._repeat(forced=True):
            self._cut()
        else:
            self.hurried = True

    def _watch_time(self) -> None:
        deadline = self.request.deadline
        if deadline and self._may_repeat and self._may_hedge:
            half = (deadline - self._begun) / 2
            self._timer = asyncio.get_running_loop().call_later(half, self._repeat)

    def _cut(self) -> None:
        """Take the request from the candidate, whose responses are dropped from now on."""
        asked, self.call = self.call, None
        self._versions.flights.remove(self)
        if asked is not None:
            asked.cancel()

    def _receive(self, response: InferResponse) -> None:
        """Receive the candidate's response; without `decoupled`, one before the final one waits for that."""
        if self.call is None:
            return
        failure = self._answers[0].add(self._candidate, response)
        if not response.final:
            self._versions.flights.add(self)
            if self._candidate.decoupled and not self.ended:
                self._receive_part(failure, response)
            return
        self.call = None
        self._versions.flights.remove(self)
        self._count(failure and (self._expired or failure))
        if failure is None or failure.code is ErrorCode.CANCELLED:
            self._deliver_final(self._answers[0], response)
        else:
            self._deliver_failure(response)

    def _receive_part(self, failure: Failure | None, response: InferResponse) -> None:
        """Receive one of many responses of the candidate."""
        if failure is not None and (self._repeated is not None or self._repeat()):
            self._count(failure)
            self._cut()
        else:
            repeated, self._repeated = self._repeated, None
            if repeated is not None:
                repeated.cancel()
            self._deliver_part(response)

    def _receive_repeated(self, response: InferResponse) -> None:
        """Receive the stable version's response."""
        if self._repeated is None:
            return
        failure = self._answers[1].add(self._versions.stable, response)
        if not response.final:
            if self._candidate.decoupled:
                self._cut()
                self._deliver_part(response)
            return
        self._repeated = None
        if self.call is not None and failure is not None:  # the candidate may still answer
            return
        self._settle(failure, repeated=True)
        self._deliver_final(self._answers[1], response)

    def _deliver_part(self, response: InferResponse) -> None:
        """Give the client a response of a stream, all of which one version answers from now on."""
        self._may_repeat = False
        self.deliver(response)

    def _deliver_failure(self, response: InferResponse) -> None:
        """Have the stable version answer what the candidate failed; if it cannot, the client gets that."""
        if self.ended:  # it has answered
            self._settle(None, repeated=True)
        elif self._repeated is None and not self._repeat():
            self._settle(response.failure)
            self._deliver_final(self._answers[0], response)

    def _count(self, failure: Failure | None) -> None:
        """Count the end of the request at the candidate; what it has refused, once it is known why."""
        seconds = monotonic() - self._begun
        cancelled = failure is not None and failure.code is ErrorCode.CANCELLED
        if not (self._silent or cancelled):
            self._versions.count_prompt(is_candidate=True)
        if failure is None or cancelled or is_servers(failure):
            self._failed = not (failure is None or cancelled)
            self._versions.count(True, failure, seconds)
        else:
            self._refusal = failure, seconds

    def _settle(self, failure: Failure | None, repeated: bool = False) -> None:
        """Count what depends on the stable version, which has answered or failed it; or was not asked."""
        answered = repeated and failure is None
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._versions.count(True, *refusal, blamed=answered)
        failed_too = failure is not None and (refusal is not None or is_servers(failure))
        if repeated and (refusal is not None or self._failed) and (answered or failed_too):
            self._versions.count_repeated(answered)

    def _repeat(self, hedge: bool = False, forced: bool = False) -> bool:
        """Send the request to the stable version, if there is time and room; return whether it was sent."""
        request = self.request
        if not self._may_repeat or self.late:
            return False
        if not (forced or self._versions.may_repeat(hedge)):
            return False
        self._may_repeat = False
        try:
            self._repeated = self._versions.send(self._versions.stable, request, self._receive_repeated)
        except InferError:
            return False
        except Exception:  # the client gets what the candidate has said
            logger.exception("repeating a request of model '%s'", self._candidate.name)
            return False
        return True

    def _deliver_final(self, answer: Answer, response: InferResponse) -> None:
        sink, self.sink = self.sink, no_sink
        if self._timer is not None:
            self._timer.cancel()
        repeated, self._repeated = self._repeated, None
        if repeated is not None:  # not needed any more
            repeated.cancel()
        for each in (*answer.held, response):
            sink(each)


def _copied(request: InferRequest) -> InferRequest:
    """Return a request with tensors of its own; the same one if they are large."""
    if sum(len(tensor.data) for tensor in request.inputs) > _MOST_COPIED:
        return request
    inputs = tuple(replace(tensor, data=bytes(tensor.data)) for tensor in request.inputs)
    return replace(request, inputs=inputs)
