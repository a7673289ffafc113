"""Counts of the requests of a rollout."""

from app.core.errors import ErrorCode, Failure
from app.core.rollout.outcomes import MOST_REASONS, VersionOutcomes
from app.rollout.tally import record


def test_failures_are_counted_by_the_first_line_of_their_text() -> None:
    outcomes = VersionOutcomes()
    for text in ("no such key\nTraceback", "no such key", "x" * 1000, ""):
        record(outcomes, Failure(ErrorCode.INTERNAL, text), 0.1)
    record(outcomes, Failure(ErrorCode.INVALID_ARG, "the client's doing"), 0.1)
    assert outcomes.reasons == {"no such key": 2, "x" * 160: 1, "no reason was given": 1}
    assert (outcomes.failed, outcomes.refused) == (4, 1)


def test_texts_without_end_are_not_kept() -> None:
    outcomes = VersionOutcomes()
    for number in range(1000):
        outcomes.add_reason(f"request {number}")
        outcomes.add_reason("out of memory")
    assert len(outcomes.reasons) <= 50 and outcomes.reasons["out of memory"] == 1000
    total = outcomes + VersionOutcomes(reasons={"out of memory": 5, "lost": 900})
    assert len(total.reasons) == MOST_REASONS
    assert list(total.reasons.items())[:2] == [("out of memory", 1005), ("lost", 900)]
