"""The number of replicas of an autoscaled version."""

import msgspec


class Outlook(msgspec.Struct, frozen=True):
    """The load that earlier days let expect of a version.

    Attributes:
        text: the same for people; "" where nothing is known.
        replicas: how many will be needed.
        error, last_value_error: the mean errors of three days, as shares of the load: of the forecast, and of
            expecting that nothing changes.
    """

    text: str = ""
    replicas: int | None = None
    error: float | None = None
    last_value_error: float | None = None


class Scale(msgspec.Struct, frozen=True):
    """The number of replicas that a version is to have, and why.

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
    outlook: Outlook = Outlook()

    def __str__(self) -> str:
        text = f"{self.wanted} replica{'' if self.wanted == 1 else 's'}: {self.reason}"
        return ", ".join(filter(None, (text, self.figures, self.outlook.text)))
