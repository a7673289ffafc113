"""Telling the callers of a replica whether its model is ready, where the model or its process may say no."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from backends.base import Backend, Instance

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5


class ReadinessWatch:
    """Asks the instances now and then, and at once when one says that it has changed.

    Lives on the data-plane loop; the instances are asked on another thread, for a model may take its time.
    """

    def __init__(
        self,
        backend: Backend,
        instances: Callable[[], Sequence[Instance]],
        announce: Callable[[bool], None],
    ) -> None:
        """`announce` is called on the loop, first with False, then with each change."""
        self._backend = backend
        self._all_instances = instances
        self._announce = announce
        self._ready = True
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Ask once, and go on asking in the background; nothing is done for models that never say no."""
        if not self._instances():
            return
        await self._check()
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    def _instances(self) -> list[Instance]:
        """Those that may say no; each knows from now on whom to tell."""
        varying = [each for each in self._all_instances() if self._backend.readiness_varies(each)]
        for instance in varying:
            instance.readiness_changed = self._wake
        return varying

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # the loop is closed: the replica is ending
            pass

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()
            await self._check()

    async def _check(self) -> None:
        ready = await self._loop.run_in_executor(None, self._ask)
        if ready != self._ready:
            self._ready = ready
            self._announce(ready)

    def _ask(self) -> bool:
        try:
            return all(self._backend.instance_ready(instance) for instance in self._instances())
        except Exception:
            logger.exception("asking whether an instance is ready")
            return False
