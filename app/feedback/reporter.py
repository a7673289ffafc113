"""Reports the scores of models in a rollout to the repository manager."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from app.core.errors import InferError
from app.core.feedback.reports import ScoreReport, SlotScores

logger = logging.getLogger(__name__)

_PERIOD_S: Final = 1.0
_SINCE_S: Final = 14 * 86400
_MOST: Final = 5000
"""Slots of one report."""


class Keeper(Protocol):
    """Has the scores of this node."""

    async def slots(self, after: int, models: Sequence[str], since: int) -> list[SlotScores]:
        """Return what has changed, see `Book.slots`."""


class ScoreReporter:
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
        self._keeper, self._models, self._send, self._node = keeper, models, send, node
        self._manager = ""
        self._told: dict[tuple[str, str], int] = {}

    async def run(self) -> None:
        """Report for ever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            try:
                await self.report()
            except InferError as error:
                logger.debug("scores are reported again: %s", error.message)
            except Exception:
                logger.exception("reporting scores of models in a rollout")

    async def report(self) -> None:
        """Tell what has changed since the last report that the present manager has received.

        Raises:
            InferError: it was not received, or the scores cannot be read.
        """
        models = self._models()
        self._told = {key: change for key, change in self._told.items() if models.get(key[0]) == key[1]}
        since = (int(time.time()) - _SINCE_S) // 60
        for model, rollout in models.items():
            after = self._told.get((model, rollout), 0)
            slots = (await self._keeper.slots(after, [model], since))[:_MOST]
            if not slots:
                continue
            manager = await self._send(ScoreReport(self._node, slots))
            if manager != self._manager:  # a new one knows nothing of before
                self._manager, self._told = manager, {}
                if after:
                    continue
            self._told[model, rollout] = slots[-1].change
