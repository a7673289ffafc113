"""The number of replicas of an autoscaled version."""

import msgspec


class Scale(msgspec.Struct, frozen=True):
    """How many replicas a version is to have, and why.

    `most` is how many it may have. `reason` and `figures` are those of the last change or, for `memory`, of
    why there is none. `changes` counts the changes since the manager started, by reason. `asleep` says that
    it has no replica because nothing asked for it, or that its first one since then may not be connected yet.
    """

    wanted: int
    reason: str = ""
    figures: str = ""
    changes: dict[str, int] = {}
    asleep: bool = False
    most: int = 0

    def __str__(self) -> str:
        text = f"{self.wanted} replica{'' if self.wanted == 1 else 's'}: {self.reason}"
        return f"{text}, {self.figures}" if self.figures else text
