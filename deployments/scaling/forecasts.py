"""The forecasts of all scaled models: what is known of each, kept beyond restarts."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from time import time
from typing import Final, Protocol

from app.core.encoding import to_json
from app.routing.scale import Outlook
from deployments.parameters import FORECAST_OFF, FORECAST_SCALE, ScalingBounds
from deployments.scaling.forecast import SLOT_S, Expectation, Forecaster, History, wanted
from deployments.scaling.policy import Sample

_LEAD: Final = 1.5
"""Times the time that replicas took to start is how far ahead they are asked for."""
_MOST_AHEAD: Final = 12
"""Slots: an hour."""


class Keeps(Protocol):
    """Keeps documents of models; a place that does not answer is logged there, and no failure."""

    async def read(self) -> dict[str, History]:
        """Return the documents, by model."""

    async def write(self, name: str, small: bytes, whole: bytes) -> object:
        """Keep a document: see `deployments.rollout.storage.documents.Documents`."""


class Forecasts:
    """The known load of every scaled model, by its identifier.

    Args:
        kept: outlives the manager; None keeps nothing.
        clock: returns Unix seconds.
    """

    def __init__(self, kept: Keeps | None = None, clock: Callable[[], float] = time) -> None:
        self._kept = kept
        self._clock = clock
        self._of: dict[str, Forecaster] = {}

    async def read(self) -> None:
        """Go on from what is kept."""
        if self._kept is not None:
            for name, history in (await self._kept.read()).items():
                self._of.setdefault(name, Forecaster(history))

    def version(self, model: str, bounds: ScalingBounds) -> "VersionForecast | None":
        """Return the forecast of a version of a model; None where it wants none."""
        if bounds.forecast == FORECAST_OFF:
            return None
        forecaster = self._of.setdefault(model, Forecaster())
        return VersionForecast(forecaster, bounds, self._clock, lambda: self._keep(model, forecaster))

    async def _keep(self, model: str, forecaster: Forecaster) -> None:
        if self._kept is not None:
            text = to_json(forecaster.history(model, self._clock()))
            await self._kept.write(model, text, text)


class VersionForecast:
    """The forecast of a model, as the number of replicas of one version follows it.

    A model's history is that of the version that was scaled last: where two are at once, in a rollout, both
    add to it, and neither is told anything.
    """

    def __init__(
        self,
        forecaster: Forecaster,
        bounds: ScalingBounds,
        clock: Callable[[], float],
        keep: Callable[[], Awaitable[None]],
    ) -> None:
        self._forecaster = forecaster
        self._bounds = bounds
        self._clock = clock
        self._keep = keep
        self._start_s = 0.0
        self._asked_at: float | None = None
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def ahead(self) -> int:
        """Slots to look ahead, up to the one in which replicas that are asked for now serve."""
        return min(1 + math.ceil(_LEAD * self._start_s / SLOT_S), _MOST_AHEAD)

    def observe(self, sample: Sample) -> bool:
        """Take a sample; return whether what is expected is new."""
        # Of what waits no more than can serve: a queue is the load of more than now.
        need = sample.executing + min(sample.waiting, sample.running)
        ended = self._forecaster.observe(need, self._clock(), self.ahead)
        if ended:
            task = asyncio.ensure_future(self._keep())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return ended

    def timed(self, told: int, running: int) -> None:
        """Measure how long replicas take to start, of `told` ones of which so many run."""
        now = self._clock()
        if running >= told:
            if self._asked_at is not None:
                self._start_s = now - self._asked_at
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now

    def replicas(self, needed: int, in_rollout: bool) -> int:
        """Return the replicas to expect; 0 for none.

        Args:
            needed: those that the load asks for.
            in_rollout: whether the version shares the model's requests with another.
        """
        expected = wanted(self._forecaster.expectation, self._bounds.target_load)
        found = expected if self._bounds.forecast == FORECAST_SCALE and not in_rollout else 0
        self._forecaster.asks(found if found > needed else 0)
        return found

    def outlook(self) -> Outlook:
        """Return what is expected, and how well it was before."""
        need, why_not, score = self._forecaster.expectation
        if need is None:
            return Outlook()
        replicas = wanted(Expectation(need, ""), self._bounds.target_load)
        text = f"forecast {replicas} within {self.ahead * SLOT_S / 60:.0f} min"
        if score is not None:
            text += f", error {score.forecast:.1%} (of the last value {score.last_value:.1%})"
        if self._bounds.forecast != FORECAST_SCALE:
            text += ", not acted on"
        elif why_not:
            text += f", not acted on: {why_not}"
        return Outlook(text, replicas, *(score or ()))
