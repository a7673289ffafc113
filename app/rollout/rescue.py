"""Has the stable version answer a request that the candidate of a rollout fails, or is late with."""

import asyncio
from time import monotonic
from typing import Final, Protocol

from app.core.errors import Failure, InferError
from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse
from app.rollout.answer import Answer
from app.rollout.tally import is_servers
from app.routing.table import VersionEntry
from app.transport.channel.client import no_sink

_SHARE: Final = 0.2
_MOST: Final = 100.0


class RescueBudget:
    """How many requests may be repeated: a fifth of all, and up to a hundred more at once."""

    def __init__(self) -> None:
        self._left = _MOST
        self._spent = 0
        self.in_vain = 0
        """Repeated requests that failed again."""

    @property
    def empty(self) -> bool:
        """Whether no request may be repeated now."""
        return self._left < 1

    @property
    def mostly_in_vain(self) -> bool:
        """Whether repeating has not helped: what fails is not the candidate alone."""
        return 2 * self.in_vain > self._spent

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._left + _SHARE, _MOST)

    def spend(self) -> bool:
        """Count a request that is to be repeated; return whether it may be."""
        if self.empty:
            return False
        self._left -= 1
        self._spent += 1
        return True


class Versions(Protocol):
    """The two versions, as a rescued call uses them."""

    stable: VersionEntry

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call: ...

    def record_candidate(self, failure: Failure | None, seconds: float) -> None: ...

    def record_repeated(self, answered: bool) -> None: ...

    def may_repeat(self) -> bool: ...


class RescuedCall:
    """A request at the candidate that is repeated once at the stable version when the server fails it.

    With a deadline it is also repeated when the candidate has not answered in half of the time; the first
    answer is the client's, and the candidate's is still counted when it comes. A request without a deadline
    is repeated when its channel fails: a replica that hangs is given up after `peer_timeout`. It has one
    response, and belongs to no sequence.
    """

    def __init__(
        self, versions: Versions, candidate: VersionEntry, request: InferRequest, sink: Sink
    ) -> None:
        """Use `start` instead."""
        self._versions = versions
        self._candidate = candidate
        self._request = request
        self._sink = sink
        self._begun = monotonic()
        self._answers = Answer(request), Answer(request)
        """The candidate's and the stable version's."""
        self._asked: Call | None = None
        self._repeated: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._may_repeat = True

    @classmethod
    def start(
        cls, versions: Versions, candidate: VersionEntry, request: InferRequest, sink: Sink
    ) -> "RescuedCall":
        """Ask the candidate; raise as `Router.submit` when neither version can be asked."""
        call = cls(versions, candidate, request, sink)
        try:
            call._asked = versions.send(candidate, request, call._on_answer)
        except InferError as error:
            versions.record_candidate(error.failure, 0.0)
            if not (is_servers(error.failure) and call._repeat()):
                raise
        else:
            call._watch_time()
        return call

    def cancel(self, advice: bool = False) -> None:
        """As `Call.cancel`."""
        self._may_repeat = False
        for call in (self._asked, self._repeated):
            if call is not None:
                call.cancel(advice)

    def _watch_time(self) -> None:
        request = self._request
        # Two replicas must not write to a client's memory, nor one read that of a calling model that goes on.
        if request.deadline and not (request.regions or request.chain):
            half = (request.deadline - self._begun) / 2
            self._timer = asyncio.get_running_loop().call_later(half, self._repeat)

    def _on_answer(self, response: InferResponse) -> None:
        """Receive the candidate's response; one before the final one is the client's with that."""
        answer, _ = self._answers
        failure = answer.add(self._candidate, response)
        if not response.final:
            return
        self._asked = None
        self._versions.record_candidate(failure, monotonic() - self._begun)
        failed = failure is not None and is_servers(failure)
        if self._sink is no_sink:  # answered by the stable version
            if failed:
                self._versions.record_repeated(answered=True)
        elif not failed or not (self._repeated is not None or self._repeat()):
            self._finish(answer, response)

    def _on_repeated(self, response: InferResponse) -> None:
        """Receive the stable version's response."""
        if self._sink is no_sink:
            return
        _, answer = self._answers
        failure = answer.add(self._versions.stable, response)
        if not response.final:
            return
        self._repeated = None
        if self._asked is not None and failure is not None:  # the candidate may still answer
            return
        if self._asked is None and (failure is None or is_servers(failure)):
            self._versions.record_repeated(answered=failure is None)
        self._finish(answer, response)

    def _repeat(self) -> bool:
        """Send the request to the stable version, if there is time; return whether it was sent."""
        request = self._request
        may_repeat, self._may_repeat = self._may_repeat, False
        if not may_repeat or 0 < request.deadline <= monotonic() or not self._versions.may_repeat():
            return False
        try:
            self._repeated = self._versions.send(self._versions.stable, request, self._on_repeated)
        except InferError:
            return False
        return True

    def _finish(self, answer: Answer, response: InferResponse) -> None:
        sink, self._sink = self._sink, no_sink
        if self._timer is not None:
            self._timer.cancel()
        if self._repeated is not None:  # not needed any more
            self._repeated.cancel()
        for each in (*answer.held, response):
            sink(each)
