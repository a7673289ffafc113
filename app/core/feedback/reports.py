"""What ingresses tell the repository manager of the feedback on models in a rollout."""

import msgspec

from app.core.feedback.figures import Scores


class SlotScores(msgspec.Struct, frozen=True):
    """The first scores of rows of a version that arrived within a minute: all of them so far.

    Attributes:
        slot: the minute, since the epoch.
        change: rises with each change on its node.
    """

    model: str
    version: str
    slot: int
    scores: Scores
    change: int


class ScoreReport(msgspec.Struct, frozen=True):
    """What has changed on a node; any of its ingresses reports it, and may do so again."""

    node: str
    slots: list[SlotScores]
