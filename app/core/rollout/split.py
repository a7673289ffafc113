"""How the requests of a model without a version are split between two versions, as routing tables have it."""

from typing import Final

import msgspec

from app.core.rollout.spec import HeaderRule
from app.core.rollout.tape import TapeWork
from nereid_client.comparison.rules import ComparisonRules

WHOLE: Final = 1_000_000
"""All requests, in the unit of weights."""


class Split(msgspec.Struct, frozen=True):
    """One rollout as an ingress, or a calling model, sees it.

    Only inference without a version sees it. Elsewhere (readiness, metadata, configuration) no version means
    the stable one.

    Attributes:
        rollout: names the rollout, for the reports about it.
        name: the model's identifier.
        stable, candidate: the two versions.
        step: rises with each change of the weight; reports say which step they are of.
        weight: parts of `WHOLE` that go to the candidate.
        mirror: parts of `WHOLE` of the stable version's requests that are repeated at the candidate.
        comparison: what mirrored outputs may differ by.
        tape: recorded requests that are repeated at the candidate; None for none.
        sticky: see `RolloutSpec`.
        salt: makes the choice by `sticky` of one rollout independent of another's.
        match: see `RolloutSpec`.
        stable_on_error: whether the stable version answers when the candidate fails.
        hang_seconds: see `RolloutSpec`.
        classes: the output whose classes are counted, "*" for the first that has any; "" for none.
        held_back: whether the stable version's requests are for comparison only: the candidate is promoted.
        state: that of the rollout, for metrics.
    """

    rollout: str
    name: str
    stable: int
    candidate: int
    step: int = 0
    weight: int = 0
    mirror: int = 0
    sticky: str = "none"
    salt: str = ""
    match: tuple[HeaderRule, ...] = ()
    stable_on_error: bool = True
    state: str = ""
    comparison: ComparisonRules = ComparisonRules()
    tape: TapeWork | None = None
    held_back: bool = False
    hang_seconds: float = 10.0
    classes: str = ""
