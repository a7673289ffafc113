"""One step of a rollout in this process: which version gets a request, and what became of it."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final

from msgspec.structs import replace

from app.core.errors import Failure, InferError
from app.core.inference import Call, Sink
from app.core.rollout.outcomes import Outcomes
from app.core.rollout.split import WHOLE, Split
from app.core.tensors import InferRequest, InferResponse
from app.rollout.answer import Answer
from app.rollout.mirror import Expected, Mirror
from app.rollout.rescue import RescueBudget, RescuedCall
from app.rollout.tally import StepTally, record
from app.routing.canary import Diffusion, draws_candidate
from app.routing.router import Router
from app.routing.table import VersionEntry

_ABSENT_S: Final = 60.0
"""Seconds after which a candidate without an available replica is given up; more if it loads slowly."""
_ABSENT_LOADS: Final = 3
"""As many times as its load took are waited for."""
_MAX_LOSSES: Final = 2


class LiveSplit:
    """Sends the requests of one model to its stable version or to the candidate, and counts them.

    The candidate gets none while it has no available replica here, nor, in this step, once its replicas were
    lost twice or it has failed more requests than may be repeated.

    Attributes:
        split: the newest one of this step.
        stable: the entry of the stable version.
    """

    split: Split
    stable: VersionEntry

    def __init__(self, router: Router, tally: StepTally, mirror: Mirror | None = None) -> None:
        """`follow` completes it. Without `mirror` no requests are mirrored."""
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

    def submit(self, request: InferRequest, sink: Sink) -> Call:
        """Start a request; see `Router.submit`."""
        draws = draws_candidate(self.split, request, self._diffusion)
        if self.split.held_back and not draws:  # for comparison only: not worth an error
            draws = not self._available(self.stable)
        candidate = self._candidate if draws and self._usable else None
        if request.sequence_id and self.stable.keeps_sequences:
            return self._submit_sequence(candidate is not None, request, sink)
        if request.mirrored:
            return self._router.submit(candidate or self.stable, request, sink)
        self._budget.earn()
        if candidate is not None and self.split.stable_on_error and not candidate.decoupled:
            return RescuedCall.start(self, candidate, request, sink)
        if candidate is None and self._mirrors(request):
            sink = partial(self._on_mirrored, request, Answer(request), sink)
        send = partial(self._router.submit, candidate or self.stable, request)
        return self._counted(candidate is not None, request, send, sink)

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

    def send(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> Call:
        """Start a request of one of the two versions."""
        return self._router.submit(entry, request, sink)

    def record_candidate(self, failure: Failure | None, seconds: float) -> None:
        """Count a request that the candidate has answered or failed after so many seconds."""
        record(self._outcomes.candidate, failure, seconds)
        if failure is not None:
            self._notice_losses()

    def record_repeated(self, answered: bool) -> None:
        """Count a request that the candidate failed, and the stable version then answered or failed too."""
        if answered:
            self._outcomes.candidate.rescued += 1
        else:
            self._budget.in_vain += 1

    def may_repeat(self) -> bool:
        """Return whether a request may be repeated now; give the candidate up if that was the last one."""
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
    def _usable(self) -> bool:
        """Whether the candidate may get a request now."""
        candidate = self._candidate
        return candidate is not None and not self._given_up and self._available(candidate)

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
        return self._mirrored.draws(self.split.mirror) and self._usable

    def _on_mirrored(
        self, request: InferRequest, answer: Answer, sink: Sink, response: InferResponse
    ) -> None:
        """Receive a response for `sink`, then mirror the request if it was answered."""
        answer.add(self.stable, response)
        sink(response)
        answered = response.final and response.failure is None
        if answered and self._mirror is not None and self._candidate is not None:
            limit, expected = self.split.max_difference, Expected.of(answer, response)
            self._mirror.repeat(request, expected, self._candidate, self.send, self._tally, limit)

    def _submit_sequence(self, draws: bool, request: InferRequest, sink: Sink) -> Call:
        """Ask the drawn version's replicas for the sequence first, then the other's."""
        # It may have started at another weight, or while the candidate had no replica.
        both = [entry for entry in (self.stable, self._candidate) if entry is not None]
        send = partial(self._router.submit_sequence, both[::-1] if draws else both, request)
        return send(sink) if request.mirrored else self._counted(draws, request, send, sink)

    def _counted(
        self, is_candidate: bool, request: InferRequest, send: Callable[[Sink], Call], sink: Sink
    ) -> Call:
        begun = monotonic()
        try:
            return send(partial(self._on_response, is_candidate, begun, Answer(request), sink))
        except InferError as error:
            self._record(is_candidate, error.failure, begun)
            raise

    def _on_response(
        self, is_candidate: bool, begun: float, answer: Answer, sink: Sink, response: InferResponse
    ) -> None:
        """Receive a response for `sink`, of the version that was asked or the one that it names."""
        if response.model_version:
            is_candidate = response.model_version == str(self.split.candidate)
        entry = self._candidate if is_candidate else self.stable
        failure = answer.add(entry or self.stable, response)
        if response.final:
            self._record(is_candidate, failure, begun)
        sink(response)

    def _record(self, is_candidate: bool, failure: Failure | None, begun: float) -> None:
        if is_candidate:
            self.record_candidate(failure, monotonic() - begun)
        else:
            record(self._outcomes.stable, failure, monotonic() - begun)
