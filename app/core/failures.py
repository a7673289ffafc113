"""Failures with one text wherever they happen."""

from __future__ import annotations

from typing import Final

from app.core.errors import ErrorCode, Failure, FailureReason

CANCELLED: Final = Failure(ErrorCode.CANCELLED, "", FailureReason.CANCELED)
"""Of a request that its client has cancelled; without a text, as Triton's."""
EXPIRED: Final = Failure(ErrorCode.UNAVAILABLE, "Deadline Exceeded")
"""Of a request whose deadline has passed, in gRPC's words."""
TIMEOUT: Final = Failure(ErrorCode.UNAVAILABLE, "Request timeout expired", FailureReason.REJECTED)
"""Of a request that has waited in a queue for as long as its policy lets it."""
SEQUENCE_EXPIRED: Final = Failure(
    ErrorCode.UNAVAILABLE, "timeout of the corresponding sequence has been expired", FailureReason.REJECTED
)
_STATE: Final = (
    "of the model was lost, and the state of its sequences with it; restart the sequence with the START flag"
)
REPLICA_LOST: Final = f"a replica {_STATE}"
INSTANCE_LOST: Final = f"an instance {_STATE}"


def shutting_down(what: str) -> Failure:
    """Return the failure of a request that comes when a server or a replica stops."""
    return Failure(ErrorCode.UNAVAILABLE, f"the {what} is shutting down")
