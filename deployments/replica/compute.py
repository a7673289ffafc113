"""Measures the executions of this replica while a rollout compares versions."""

import asyncio
from collections import deque
from typing import Final

from app.core.observability.statistics import Statistics
from app.core.rollout.outcomes import Executions, log_bucket

_MOST: Final = 4096
"""Executions that are kept from one reading to the next: the last ones."""
_FORGET_S: Final = 30.0
"""Time after a reading at which none are kept any more: nobody compares them."""


class ComputeMeter:
    """Answers the `COMPUTE` verb. Executions are kept from the first call on."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._end: asyncio.TimerHandle | None = None

    async def take(self) -> Executions:
        """Return the executions since the last call."""
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(_FORGET_S, self._stop)
        taken, self._statistics.executions = self._statistics.executions, deque(maxlen=_MOST)
        found: Executions = {}
        for rows, ns in taken or ():
            times = found.setdefault(log_bucket(rows), {})
            duration = log_bucket(ns / 1000)
            times[duration] = times.get(duration, 0) + 1
        return found

    def _stop(self) -> None:
        self._statistics.executions = None
