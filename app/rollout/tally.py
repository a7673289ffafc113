"""Counts the outcomes of the requests of a rollout until they are reported."""

from typing import Final

from app.core.errors import ErrorCode, Failure
from app.core.rollout.outcomes import Outcomes, StepOutcomes, VersionOutcomes, log_bucket

_FAILURES: Final = (
    ErrorCode.INTERNAL,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNKNOWN,
    ErrorCode.DEADLINE_EXCEEDED,
)
"""A lost replica and a deadline that has passed are UNAVAILABLE too. Anything else is the client's doing."""


def is_servers(failure: Failure) -> bool:
    """Return whether the server is to blame for a failure, rather than its client."""
    return failure.code in _FAILURES


def bucket(seconds: float) -> int:
    """Return the latency bucket of a duration, see `LATENCY_RATIO`."""
    return log_bucket(seconds * 1e6)


def record(outcomes: VersionOutcomes, failure: Failure | None, seconds: float, blamed: bool = False) -> None:
    """Add a request, which took so long, to the outcomes of the version that was asked.

    It is `blamed` for what it has refused if the other version has answered that.
    """
    if failure is None:
        outcomes.ok += 1
        number = bucket(seconds)
        outcomes.latencies[number] = outcomes.latencies.get(number, 0) + 1
    elif blamed or is_servers(failure):
        outcomes.failed += 1
        outcomes.add_reason(failure.message)
    elif failure.code is ErrorCode.CANCELLED:
        outcomes.cancelled += 1
    else:
        outcomes.refused += 1


class StepTally:
    """The outcomes of one step of a rollout since the last report."""

    def __init__(self, rollout: str, step: int) -> None:
        self.rollout = rollout
        self.step = step
        self.outcomes = Outcomes()
        self.unavailable = ""
        """Why the candidate gets no requests from here; "" if it does."""
        self.absent = False
        """Whether it has no available replica now."""

    def take(self) -> StepOutcomes | None:
        """Return what is to be reported, and count from zero; None for nothing."""
        if self.outcomes == Outcomes() and not (self.unavailable or self.absent):
            return None
        taken, self.outcomes = self.outcomes, Outcomes()
        return StepOutcomes(self.rollout, self.step, taken, self.unavailable, self.absent)
