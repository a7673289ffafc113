"""Loads on demand: one for all requests that wait for it, with a pause after a failed one."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, Failure, InferError
from app.core.system.pauses import growing_pause

MAX_DEMANDS: Final = 1024
"""Models that are asked for at the same time."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0

Load = Callable[[str], Awaitable[None]]
"""Loads a model; raises why it cannot."""


class _Failed(NamedTuple):
    """Failed loads: why the last one did, how many in a row have, and until when none is tried again."""

    failure: Failure
    times: int
    until: float


class Demands:
    """Keeps a load of each model that is asked for.

    Attributes:
        started: loads begun.
        failed: those of them that failed.
    """

    def __init__(self, load: Load, clock: Callable[[], float] = monotonic) -> None:
        self._load = load
        self._clock = clock
        self._loads: dict[str, asyncio.Task[Failure | None]] = {}
        self._failed: dict[str, _Failed] = {}
        self.started = 0
        self.failed = 0

    async def bring(self, name: str) -> None:
        """Load a model, or wait for its load if that has begun.

        Raises:
            InferError: why it failed, now or a short time ago; UNAVAILABLE when too many are asked for.
        """
        load = self._loads.get(name)
        if load is None:
            self._refuse_early(name)
            load = self._loads[name] = asyncio.create_task(self._bring(name))
        failure = await asyncio.shield(load)
        if failure is not None:
            raise failure.error()

    def forget(self, name: str) -> None:
        """Let a model whose load failed be tried again: its files have changed."""
        self._failed.pop(name, None)

    def _refuse_early(self, name: str) -> None:
        before = self._failed.get(name)
        if before is not None and (left := before.until - self._clock()) > 0:
            failure = before.failure
            raise InferError(failure.code, failure.message, failure.reason, left)
        if len(self._loads) >= MAX_DEMANDS:
            text = f"model '{name}' is not loaded, and too many models are being loaded"
            raise InferError(ErrorCode.UNAVAILABLE, text, retry_after_s=_FIRST_PAUSE_S)

    async def _bring(self, name: str) -> Failure | None:
        self.started += 1
        try:
            await self._load(name)
        except Exception as error:
            self.failed += 1
            return self._remember(name, Failure.from_exception(error))
        finally:
            del self._loads[name]
        self._failed.pop(name, None)
        return None

    def _remember(self, name: str, failure: Failure) -> Failure:
        before = self._failed.get(name)
        times = before.times + 1 if before is not None else 1
        pause_s = growing_pause(times, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._failed[name] = _Failed(failure, times, self._clock() + pause_s)
        return Failure(failure.code, failure.message, failure.reason, pause_s)
