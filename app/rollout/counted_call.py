"""A request of a rollout that is answered by the version that has it, and counted once for that."""

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from app.core.errors import ErrorCode, Failure, InferError
from app.core.failures import EXPIRED
from app.core.inference import Call, InFlight, Sink
from app.core.tensors import InferRequest, InferResponse
from app.rollout.answer import Answer
from app.rollout.flights import Flights
from app.routing.table import VersionEntry

_CLOCKS_S: Final = 0.1
"""By how much a client's clock may end its request before the deadline that it has sent."""


class Versions(Protocol):
    """The two versions of a rollout, as a request in flight uses them."""

    stable: VersionEntry
    flights: Flights

    def entry(self, is_candidate: bool) -> VersionEntry:
        """Return a version; the stable one when there is no candidate any more."""

    def is_candidates(self, call: Call) -> bool:
        """Return whether a request is at a replica of the candidate."""

    def names_candidate(self, response: InferResponse) -> bool:
        """Return whether a response says that it is the candidate's."""

    def count(
        self, is_candidate: bool, failure: Failure | None, seconds: float, blamed: bool = False
    ) -> None:
        """Count a request that a version has answered or failed after so many seconds; see `record`."""

    def count_late(self, is_candidate: bool) -> None:
        """Count a request that is late."""

    def count_prompt(self, is_candidate: bool) -> None:
        """Count a request that has ended before it was late."""


def expired(request: InferRequest) -> Failure | None:
    """Return how a request that its client cancels now has failed: its deadline may have passed."""
    return EXPIRED if 0 < request.deadline <= monotonic() + _CLOCKS_S else None


def hanging(entry: VersionEntry, seconds: float) -> Failure:
    """Return the failure of a request on which a version has been silent for so long."""
    text = f"model '{entry.model}' version {entry.version} has not answered for {seconds:.0f} s"
    return Failure(ErrorCode.UNAVAILABLE, text)


class CountedCall(InFlight):
    """A request at the stable version, or one of a sequence, which either version may have.

    One that hangs counts as failed, whatever comes later; a sequence that hangs at the candidate ends then.
    """

    __slots__ = (
        "_answer",
        "_begun",
        "_counted",
        "_failure",
        "_is_candidate",
        "_silent",
        "_versions",
        "heard",
        "hurried",
    )

    def __init__(self, versions: Versions, is_candidate: bool, request: InferRequest, sink: Sink) -> None:
        """Use `start` instead."""
        super().__init__(request, sink)
        self._versions = versions
        self._is_candidate = is_candidate
        self._answer = Answer(request)
        self._failure: Failure | None = None
        self._counted = self._silent = self.hurried = False
        self._begun = monotonic()
        self.heard = 0.0

    @classmethod
    def start(
        cls,
        versions: Versions,
        is_candidate: bool,
        request: InferRequest,
        send: Callable[[Sink], Call],
        sink: Sink,
    ) -> "CountedCall":
        """Send a request that is taken to be the candidate's, or not; raise what `send` raises."""
        call = cls(versions, is_candidate, request, sink)
        try:
            call.call = send(call._receive)
        except InferError as error:
            call._count(error.failure)
            raise
        versions.flights.add(call)
        return call

    def cancel(self, advice: bool = False) -> None:
        self._failure = None if advice else expired(self.request)
        super().cancel(advice)

    def note_late(self) -> None:
        """As `Flight.note_late`."""
        if not self._silent:
            self._silent = True
            self._find_version()
            self._versions.count_late(self._is_candidate)

    def note_hang(self, seconds: float) -> None:
        """As `Flight.note_hang`."""
        self._find_version()
        failure = hanging(self._versions.entry(self._is_candidate), seconds)
        self._count(failure)
        if self._is_candidate and self.call is not None:
            self.call.cancel()
            self.fail(failure)

    def withdraw(self) -> None:
        """As `Flight.withdraw`: a sequence goes on until it ends."""

    def _find_version(self) -> None:
        if self.request.sequence_id and self.call is not None:
            self._is_candidate = self._versions.is_candidates(self.call)

    def _receive(self, response: InferResponse) -> None:
        """Receive a response, of the version that was asked or the one that it names."""
        if self.ended:
            return
        versions = self._versions
        if response.model_version:
            self._is_candidate = versions.names_candidate(response)
        failure = self._answer.add(versions.entry(self._is_candidate), response)
        if response.final:
            versions.flights.remove(self)
            if failure is None and not self._is_candidate:  # also if it took so long that it has failed
                versions.flights.durations.add(monotonic() - self._begun)
            self._count(failure and (self._failure or failure))
        else:
            versions.flights.add(self)
        self.deliver(response)

    def _count(self, failure: Failure | None) -> None:
        if not self._counted:
            self._counted = True
            self._versions.count(self._is_candidate, failure, monotonic() - self._begun)
            if not self._silent and (failure is None or failure.code is not ErrorCode.CANCELLED):
                self._versions.count_prompt(self._is_candidate)
