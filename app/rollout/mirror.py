"""Repeats answered requests at the candidate of a rollout, to compare what the two versions respond."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

from msgspec.structs import replace

from app.core.errors import Failure, FailureReason, InferError, internal
from app.core.inference import Call, Sink
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.rollout.answer import Answer
from app.rollout.tally import StepTally
from app.routing.table import VersionEntry
from nereid_client.comparison.compare import Compared, compare
from nereid_client.comparison.rules import ComparisonRules

MAX_UNDER_WAY: Final = 64
_FEWEST: Final = 4
_PROMPT_S: Final = 1.0
"""A candidate that takes longer for a mirrored request is full: half as many are under way then."""
_CANDIDATES: Final = 256
MAX_BYTES: Final = 256 << 20
"""Bytes of the inputs and outputs of mirrored requests under way; those above are skipped."""
_TIME_S: Final = 30.0
_HEAVY: Final = 64 << 10
"""Bytes of outputs from which they are compared in a thread."""


class Expected(NamedTuple):
    """What the stable version has answered, and whether as its own configuration says."""

    outputs: tuple[Tensor, ...]
    as_configured: bool

    @classmethod
    def of(cls, answer: Answer, final: InferResponse) -> "Expected":
        """Return what is expected after the final response."""
        return cls(answer.outputs(final), answer.failure is None)


class Mirror:
    """The mirrored requests of this process. Runs on the data-plane loop.

    They begin when their client has its answer, have the lowest priority of the model, and are executed
    whatever a response cache has. The replica counts them as any other, the rollout as mirrored only. Fewer
    are under way at once while the candidate is slow with them: more would wait there in vain.
    """

    def __init__(self) -> None:
        self._under_way = 0
        self._bytes = 0
        self._under_way_at: dict[str, int] = {}
        self._most_at: dict[str, int] = {}
        """Of a candidate, by application: those that are under way, and how many may be."""

    def repeat(
        self,
        request: InferRequest,
        expected: Expected,
        candidate: VersionEntry,
        send: Callable[[VersionEntry, InferRequest, Sink], Call],
        tally: StepTally,
        rules: ComparisonRules,
        seconds: float = _TIME_S,
    ) -> None:
        """Repeat a request and compare the response; count it in `tally`.

        Args:
            request: the request, whose tensors nobody changes any more.
            expected: what the stable version has answered.
            candidate: the version to send it to.
            send: sends it.
            tally: of the step that the rollout is in.
            rules: what the outputs may differ by.
            seconds: after which a request has failed that is not answered.
        """
        at = candidate.application
        nbytes = sum(len(tensor.data) for tensor in (*request.inputs, *expected.outputs))
        full = self._under_way_at.get(at, 0) >= self._most_at.get(at, _FEWEST)
        if full or self._under_way >= MAX_UNDER_WAY or self._bytes + nbytes > MAX_BYTES:
            tally.outcomes.mirror.skipped += 1
            return
        self._under_way += 1
        self._under_way_at[at] = self._under_way_at.get(at, 0) + 1
        self._bytes += nbytes
        repeated = _mirrored(request, candidate, seconds)
        ended = partial(self._ended, at, nbytes)
        mirrored = _Mirrored(candidate, expected, Answer(repeated), tally, rules, ended)
        try:
            send(candidate, repeated, mirrored.receive)
        except InferError as error:
            mirrored.fail(error.failure)

    def _ended(self, at: str, nbytes: int, prompt: bool) -> None:
        self._under_way -= 1
        self._bytes -= nbytes
        self._under_way_at[at] -= 1
        if not self._under_way_at[at]:
            del self._under_way_at[at]
        most = self._most_at.pop(at, _FEWEST)
        self._most_at[at] = min(most + 1, MAX_UNDER_WAY) if prompt else max(most // 2, _FEWEST)
        if len(self._most_at) > _CANDIDATES:
            del self._most_at[next(iter(self._most_at))]


def _mirrored(request: InferRequest, candidate: VersionEntry, seconds: float) -> InferRequest:
    levels = candidate.model_config.dynamic_batching.priority_levels  # the last is the lowest; 0 without any
    return replace(
        request,
        model_version=str(candidate.version),
        priority=int(levels),
        timeout_us=0,
        trace="",
        mirrored=True,
        deadline=monotonic() + seconds,
        rollout=None,
    )


class _Mirrored:
    """A mirrored request under way."""

    def __init__(
        self,
        candidate: VersionEntry,
        expected: Expected,
        answer: Answer,
        tally: StepTally,
        rules: ComparisonRules,
        ended: Callable[[bool], None],
    ) -> None:
        self._candidate = candidate
        self._expected = expected
        self._answer = answer
        self._tally = tally
        self._rules = rules
        self._ended = ended
        self._begun = monotonic()

    @property
    def _is_prompt(self) -> bool:
        return monotonic() - self._begun <= _PROMPT_S

    def receive(self, response: InferResponse) -> None:
        """Receive the candidate's response."""
        failure = self._answer.add(self._candidate, response)
        if not response.final:
            return
        # What the stable version answers too is no failure of the candidate.
        failure = failure if self._expected.as_configured else response.failure
        if failure is not None:
            self.fail(failure)
            return
        both = self._expected.outputs, self._answer.outputs(response)
        if sum(len(tensor.data) for tensor in self._expected.outputs) > _HEAVY:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, compare, self._rules, *both).add_done_callback(self._on_compared)
            return
        self._record(compare(self._rules, *both))

    def fail(self, failure: Failure) -> None:
        """Count a failure of the candidate; what its own queue refuses at once says nothing of it."""
        refused = failure.reason is FailureReason.REJECTED and self._is_prompt
        if refused:
            self._tally.outcomes.mirror.skipped += 1
        else:
            self._tally.outcomes.mirror.failed += 1
            self._tally.outcomes.candidate.add_reason(failure.message)
        self._ended(self._is_prompt and not refused)

    def _on_compared(self, compared: "asyncio.Future[Compared]") -> None:
        if compared.cancelled() or compared.exception() is not None:
            self.fail(internal("its outputs could not be compared").failure)
        else:
            self._record(compared.result())

    def _record(self, found: Compared) -> None:
        outcomes = self._tally.outcomes.mirror
        outcomes.compared += 1
        outcomes.differing += found.differs
        outcomes.disagreeing += found.disagrees
        outcomes.near_ties += found.near_tie
        outcomes.max_difference = max(outcomes.max_difference, found.absolute)
        self._ended(self._is_prompt)
