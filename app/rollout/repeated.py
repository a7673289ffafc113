"""A request that is repeated at the candidate of a rollout, and how its answer is compared."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final, NamedTuple

from msgspec.structs import replace

from app.core.errors import Failure, FailureReason, InferError, internal
from app.core.inference import Call, Sink
from app.core.rollout.outcomes import Outcomes
from app.core.tensors import InferRequest, InferResponse, Tensor
from app.rollout.answer import Answer
from app.routing.table import VersionEntry
from nereid_client.comparison.compare import Compared, compare
from nereid_client.comparison.rules import ComparisonRules

_PROMPT_S: Final = 1.0
"""A candidate that takes longer for a mirrored request is full."""
_HEAVY: Final = 64 << 10
"""Bytes of outputs from which they are compared in a thread."""

Send = Callable[[VersionEntry, InferRequest, Sink], Call]


class Expected(NamedTuple):
    """The stable version's answer, and whether it is as its own configuration says."""

    outputs: tuple[Tensor, ...]
    as_configured: bool

    @classmethod
    def of(cls, answer: Answer, final: InferResponse) -> "Expected":
        """Return what is expected after the final response."""
        return cls(answer.outputs(final), answer.failure is None)


class Finding(NamedTuple):
    """The outcome of a repeated request: its comparison, or a failure; and whether within a second."""

    found: Compared | Failure
    prompt: bool

    @property
    def refused(self) -> bool:
        """Whether the candidate's own queue has refused it at once, which says nothing of the candidate."""
        found = self.found
        return self.prompt and isinstance(found, Failure) and found.reason is FailureReason.REJECTED

    def add_to(self, outcomes: Outcomes) -> None:
        """Add it to the outcomes of a step."""
        mirror, found = outcomes.mirror, self.found
        if self.refused:
            mirror.skipped += 1
        elif isinstance(found, Failure):
            mirror.failed += 1
            outcomes.candidate.add_reason(found.message)
        else:
            mirror.compared += 1
            mirror.differing += found.differs
            mirror.disagreeing += found.disagrees
            mirror.near_ties += found.near_tie
            mirror.max_difference = max(mirror.max_difference, found.absolute)


class Repeated:
    """A request under way at the candidate; `ended` is called once, with what came of it."""

    def __init__(
        self,
        candidate: VersionEntry,
        request: InferRequest,
        expected: Expected,
        rules: ComparisonRules,
        ended: Callable[[Finding], None],
    ) -> None:
        """Use `start` instead."""
        self._candidate = candidate
        self._expected = expected
        self._answer = Answer(request)
        self._rules = rules
        self._ended = ended
        self._begun = monotonic()

    @classmethod
    def start(
        cls,
        candidate: VersionEntry,
        request: InferRequest,
        expected: Expected,
        rules: ComparisonRules,
        send: Send,
        ended: Callable[[Finding], None],
    ) -> None:
        """Send a request from `mirrored`."""
        repeated = cls(candidate, request, expected, rules, ended)
        try:
            send(candidate, request, repeated._receive)
        except InferError as error:
            repeated._end(error.failure)

    def _receive(self, response: InferResponse) -> None:
        """Receive the candidate's response."""
        failure = self._answer.add(self._candidate, response)
        if not response.final:
            return
        # What the stable version answers too is no failure of the candidate.
        failure = failure if self._expected.as_configured else response.failure
        if failure is not None:
            self._end(failure)
            return
        both = self._expected.outputs, self._answer.outputs(response)
        if sum(len(tensor.data) for tensor in self._expected.outputs) > _HEAVY:
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, compare, self._rules, *both).add_done_callback(self._on_compared)
            return
        self._end(compare(self._rules, *both))

    def _on_compared(self, compared: "asyncio.Future[Compared]") -> None:
        if compared.cancelled() or compared.exception() is not None:
            self._end(internal("its outputs could not be compared").failure)
        else:
            self._end(compared.result())

    def _end(self, found: Compared | Failure) -> None:
        self._ended(Finding(found, monotonic() - self._begun <= _PROMPT_S))


def mirrored(request: InferRequest, version: VersionEntry, seconds: float) -> InferRequest:
    """Return a request as it is repeated at a version: of the lowest priority, with so much time."""
    levels = version.model_config.dynamic_batching.priority_levels  # the last is the lowest; 0 without any
    return replace(
        request,
        model_version=str(version.version),
        priority=int(levels),
        timeout_us=0,
        trace="",
        mirrored=True,
        deadline=monotonic() + seconds,
        rollout=None,
    )
