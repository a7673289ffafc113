"""A rollout half way."""

from typing import Any

import msgspec

from app.core.rollout.history import Evidence, RejectedVersion, RolloutHistory, ServedEvent
from app.core.rollout.outcomes import MirrorOutcomes, Outcomes, VersionOutcomes
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.status import RolloutEvent, RolloutState, RolloutStatus, Verdict

STARTED = 1_700_000_000.0
REJECTED = RejectedVersion(3, "f", STARTED + 60, "ops", "errors: 30 of 40 requests failed")


def rollout_history(**changes: Any) -> RolloutHistory:
    """The history of a model that was rolled out and back."""
    evidence = Evidence(3000, 30, 1000, 10, rules={"errors": 2.5})
    history = RolloutHistory(
        "identity",
        1,
        (
            ServedEvent(STARTED, "loaded", 1, "nereid", "the start"),
            ServedEvent(STARTED + 60, "failed", 1, "nereid", REJECTED.why, 3, evidence),
            ServedEvent(STARTED + 120, "rolled back", 1, "ops", "rolled back to version 1 on request", 2),
        ),
        (REJECTED,),
    )
    return msgspec.structs.replace(history, **changes)


def rollout(**changes: Any) -> RolloutStatus:
    """A rollout at 25 %."""
    outcomes = Outcomes(
        VersionOutcomes(ok=2970, failed=30, refused=4, latencies={40: 2800, 44: 170}),
        VersionOutcomes(ok=990, failed=10, rescued=9, latencies={40: 900, 45: 90}),
        MirrorOutcomes(compared=200, differing=3, disagreeing=1, max_difference=0.02),
    )
    status = RolloutStatus(
        model="identity",
        rollout="a1b2",
        stable=1,
        candidate=2,
        state=RolloutState.STEP,
        reason="the step of 5 % passed",
        step=2,
        percent=25.0,
        since=STARTED + 120,
        started=STARTED,
        spec=RolloutSpec(mirror=5.0),
        outcomes=outcomes,
        total=outcomes + outcomes,
        verdict=Verdict(evidence={"errors": 2.5, "latency": 0.0}, detectable=0.031),
        history=(
            RolloutEvent(STARTED, RolloutState.LOADING, 0.0, "ops", "started on request"),
            RolloutEvent(STARTED + 120, RolloutState.STEP, 25.0, "nereid", "the step of 5 % passed"),
        ),
    )
    return msgspec.structs.replace(status, **changes)
