"""Reports the scores of models in a rollout to the repository manager."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from app.core.feedback.reports import ScoreReport, SlotScores
from app.core.observability.reporter import Reporter

_SINCE_S: Final = 14 * 86400
_MOST: Final = 5000
"""Slots of one report."""


class Keeper(Protocol):
    """Has the scores of this node."""

    async def slots(self, after: int, models: Sequence[str], since: int) -> list[SlotScores]:
        """Return what has changed, see `Book.slots`."""


class ScoreReporter(Reporter[ScoreReport, str]):
    """Reports once a second what has changed.

    A report has sums, no differences: one that did not arrive, or arrives twice, changes nothing.

    Args:
        keeper: of the feedback.
        models: returns the models in a rollout, with the name of that.
        send: sends a report; returns what names the manager that has received it.
        node: this node.
    """

    def __init__(
        self,
        keeper: Keeper,
        models: Callable[[], dict[str, str]],
        send: Callable[[ScoreReport], Awaitable[str]],
        node: str,
    ) -> None:
        super().__init__("scores of models in a rollout", send)
        self._keeper, self._models, self._node = keeper, models, node
        self._manager = ""
        self._told: dict[tuple[str, str], int] = {}
        self._telling: dict[tuple[str, str], tuple[int, int]] = {}
        """By model and rollout, the changes after which and up to which the report on its way tells."""

    async def collect(self, number: int) -> ScoreReport | None:
        """Return what has changed since what the manager has received."""
        models = self._models().items()
        self._told = {key: change for key, change in self._told.items() if key in models}
        self._telling = {}
        since = (int(time.time()) - _SINCE_S) // 60
        found: list[SlotScores] = []
        for key in models:
            after = self._told.get(key, 0)
            slots = (await self._keeper.slots(after, [key[0]], since))[: _MOST - len(found)]
            if slots:
                self._telling[key] = after, slots[-1].change
                found += slots
        return ScoreReport(self._node, found) if found else None

    def heard(self, report: ScoreReport, answer: str) -> None:
        """Remember what the manager knows: a new one knows nothing of before."""
        if answer != self._manager:
            self._manager, self._told = answer, {}
        for key, (after, last) in self._telling.items():
            if after == self._told.get(key, 0):
                self._told[key] = last
