"""One step of a rollout in this process: which version gets a request, and what became of it."""

from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from app.core.errors import Failure, InferError
from app.core.inference import Call, Sink
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest, InferResponse
from app.rollout.answer import Answer
from app.rollout.candidate_call import CandidateCall
from app.rollout.classes import classes_of
from app.rollout.counted_call import CountedCall
from app.rollout.flights import Flights
from app.rollout.mirror import Mirror
from app.rollout.repeated import Expected
from app.rollout.rescue import RescueBudget
from app.rollout.tally import StepTally, record
from app.routing.canary import Diffusion, draws_candidate
from app.routing.table import VersionEntry

_ABSENT_S: Final = 60.0
"""Seconds after which a candidate without an available replica is given up; more if it loads slowly."""
_ABSENT_LOADS: Final = 3
"""As many times as its load took are waited for."""
_MAX_LOSSES: Final = 2


class Versions(Protocol):
    """The router, as it tells the state of the two versions."""

    def available(self, entry: VersionEntry) -> bool:
        """Return whether a request to this version would be accepted now."""

    def losses(self, entry: VersionEntry) -> int:
        """Return how many replicas of a version were lost since it is routed to, other than by a drain."""

    def is_at(self, entry: VersionEntry, call: Call) -> bool:
        """Return whether a request in flight is at a replica of a version."""

    def send_in_sequence(self, entries: Sequence[VersionEntry], request: InferRequest, sink: Sink) -> Call:
        """Send a request to the replica of one of these versions that has its sequence."""


class LiveSplit:
    """Sends the requests of one model to its stable version or to the candidate, and counts them.

    The candidate gets none while it has no available replica here, nor, in this step, once its replicas were
    lost twice or it has failed more requests than may be repeated.

    Attributes:
        split: the newest one of this step.
        stable: the entry of the stable version.
        flights: the requests of the rollout, of all its steps, that are in flight.
    """

    split: Split
    stable: VersionEntry

    def __init__(
        self, router: Versions, tally: StepTally, flights: Flights, mirror: Mirror | None = None
    ) -> None:
        """`follow` completes it. Without `mirror` no requests are mirrored."""
        self.flights = flights
        self._router = router
        self._tally = tally
        self._mirror = mirror
        self._diffusion, self._mirrored = Diffusion(), Diffusion()
        self._budget = RescueBudget()
        self._candidate: VersionEntry | None = None
        self._losses_before = 0
        self._absent_s = 0
        self._given_up = ""

    def follow(self, split: Split, stable: VersionEntry, candidate: VersionEntry | None) -> None:
        """Use these entries from now on; `candidate` is None while it is not READY."""
        known = self._candidate
        if split.held_back and stable.keeps_sequences:  # none begins where it could soon not go on
            split = replace(split, weight=WHOLE)
        self.split, self.stable, self._candidate = split, stable, candidate
        if candidate is not None:
            if known is None or known.application != candidate.application:
                self._losses_before = self._router.losses(candidate)
            if (candidate.decoupled, candidate.keeps_sequences) != (stable.decoupled, stable.keeps_sequences):
                self._give_up("only one of the two versions is decoupled, or keeps sequences")

    def start(self, request: InferRequest, sink: Sink) -> Call:
        """Start a request; see `Target.submit`."""
        draws = draws_candidate(self.split, request, self._diffusion)
        if self.split.held_back and not draws:  # for comparison only: not worth an error
            draws = not self._available(self.stable)
        candidate = self.at_hand if draws else None
        if request.sequence_id and self.stable.keeps_sequences:
            return self._submit_sequence(candidate is not None, request, sink)
        if request.mirrored:
            return (candidate or self.stable).route.submit(request, sink)
        self._budget.earn()
        if candidate is not None:
            return CandidateCall.start(self, candidate, request, sink, self.split.stable_on_error)
        if self._mirrors(request):
            sink = partial(self._deliver_and_mirror, request, Answer(request), sink)
        send = partial(self.send, self.stable, request)
        return CountedCall.start(self, False, request, send, sink)

    def look(self) -> None:
        """Notice a candidate that has no replica here, or has one again; called once a second."""
        candidate = self._candidate
        absent = candidate is not None and not self._available(candidate)
        self._absent_s = self._absent_s + 1 if absent else 0
        self._notice_losses()
        too_long = ""
        if candidate is not None and self._absent_s >= max(_ABSENT_S, _ABSENT_LOADS * candidate.load_seconds):
            too_long = f"no replica of the candidate was available for {self._absent_s} s"
        self._tally.absent, self._tally.unavailable = absent, self._given_up or too_long

    @property
    def hang_s(self) -> float:
        """Seconds after which a request has failed that is not answered."""
        return self.flights.hang_s

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request of one of the two versions."""
        if self.split.classes and not request.mirrored:
            sink = partial(self._deliver_counted, entry, sink)
        return entry.route.submit(request, sink)

    def entry(self, is_candidate: bool) -> VersionEntry:
        """Return a version; the stable one when there is no candidate any more."""
        return self._candidate or self.stable if is_candidate else self.stable

    def is_candidates(self, call: Call) -> bool:
        """Return whether a request is at a replica of the candidate."""
        return self._candidate is not None and self._router.is_at(self._candidate, call)

    def names_candidate(self, response: InferResponse) -> bool:
        """Return whether a response says that it is the candidate's."""
        return response.model_version == str(self.split.candidate)

    def count(
        self, is_candidate: bool, failure: Failure | None, seconds: float, blamed: bool = False
    ) -> None:
        """Count a request that a version has answered or failed after so many seconds; see `record`."""
        record(self._outcomes.of(is_candidate), failure, seconds, blamed)
        if is_candidate and failure is not None:
            self._notice_losses()

    def count_late(self, is_candidate: bool) -> None:
        """Count a request that is late, see `flights`."""
        self._outcomes.of(is_candidate).late += 1

    def count_prompt(self, is_candidate: bool) -> None:
        """Count a request that has ended before it was late."""
        self._outcomes.of(is_candidate).prompt += 1

    def count_repeated(self, answered: bool) -> None:
        """Count a request that the candidate failed, and the stable version then answered or failed too."""
        if answered:
            self._outcomes.candidate.rescued += 1
        else:
            self._budget.in_vain += 1

    def may_repeat(self, hedge: bool = False) -> bool:
        """Return whether a request may be repeated now; give the candidate up if that was the last one.

        It does not depend on a `hedge`, which is done only while there is plenty of room.
        """
        if hedge and not self._budget.is_ample:
            return False
        # Those that are in flight when the candidate is given up are all repeated.
        if not self._budget.spend() and not self._given_up:
            return False
        if self._budget.empty and not self._budget.mostly_in_vain:
            self._give_up("the candidate fails or delays more requests than may be repeated")
        return True

    @property
    def _outcomes(self) -> Outcomes:
        return self._tally.outcomes

    @property
    def at_hand(self) -> VersionEntry | None:
        """The candidate, if it may get a request now."""
        candidate = self._candidate
        usable = candidate is not None and not self._given_up and self._available(candidate)
        return candidate if usable else None

    def _available(self, entry: VersionEntry) -> bool:
        try:
            return self._router.available(entry)
        except InferError:  # an ensemble, one of whose models is not there
            return False

    def _notice_losses(self) -> None:
        candidate = self._candidate
        if candidate is not None and self._router.losses(candidate) - self._losses_before >= _MAX_LOSSES:
            self._give_up(f"replicas of the candidate were lost {_MAX_LOSSES} times")

    def _give_up(self, why: str) -> None:
        self._given_up = self._tally.unavailable = self._given_up or why

    def _mirrors(self, request: InferRequest) -> bool:
        """Return whether a request of the stable version is to be mirrored: one with one response."""
        # Memory of a client, or of a calling model, may change once it has its answer.
        if self._mirror is None or self.stable.decoupled or request.regions:
            return False
        return self._mirrored.draws(self.split.mirror) and self.at_hand is not None

    def _deliver_and_mirror(
        self, request: InferRequest, answer: Answer, sink: Sink, response: InferResponse
    ) -> None:
        """Deliver a response to `sink`, then mirror the request if it was answered."""
        answer.add(self.stable, response)
        sink(response)
        answered = response.final and response.failure is None
        if answered and self._mirror is not None and self._candidate is not None:
            rules, expected = self.split.comparison, Expected.of(answer, response)
            self._mirror.repeat(
                request, expected, self._candidate, self.send, self._tally, rules, self.hang_s
            )

    def _deliver_counted(self, entry: VersionEntry, sink: Sink, response: InferResponse) -> None:
        """Deliver a response, then count its classes."""
        sink(response)
        if response.failure is None and response.outputs:
            found = classes_of(response.outputs, self.split.classes, entry.batched)
            self._outcomes.of(entry.version == self.split.candidate).add_classes(found)

    def _submit_sequence(self, draws: bool, request: InferRequest, sink: Sink) -> Call:
        """Ask the drawn version's replicas for the sequence first, then the other's."""
        # It may have started at another weight, or while the candidate had no replica.
        both = [entry for entry in (self.stable, self._candidate) if entry is not None]
        send = partial(self._router.send_in_sequence, both[::-1] if draws else both, request)
        if request.mirrored:
            return send(sink)
        return CountedCall.start(self, draws, request, send, sink)
