"""Watches the readiness of a model whose backend may report that it is not ready."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from backends.base import Backend, Instance

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5


class ReadinessWatch:
    """Polls the readiness of the instances, and at once when an instance reports a change.

    Belongs to the data-plane loop; the instances are polled on another thread, since a model may be slow.

    Args:
        backend: the backend of the instances.
        instances: returns the present instances.
        announce: called on the loop with each change; the model is ready at first.
    """

    def __init__(
        self,
        backend: Backend,
        instances: Callable[[], Sequence[Instance]],
        announce: Callable[[bool], None],
    ) -> None:
        self._backend = backend
        self._all_instances = instances
        self._announce = announce
        self._ready = True
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Poll once, then in the background; does nothing for models that are always ready."""
        if not self._instances():
            return
        await self._check()
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()

    def _instances(self) -> list[Instance]:
        """Return the instances whose readiness varies, and subscribe to their changes."""
        varying = [each for each in self._all_instances() if self._backend.readiness_varies(each)]
        for instance in varying:
            instance.readiness_changed = self._wake
        return varying

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:  # the loop is closed: the replica is shutting down
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
        ready = await self._loop.run_in_executor(None, self._poll)
        if ready != self._ready:
            self._ready = ready
            self._announce(ready)

    def _poll(self) -> bool:
        try:
            return all(self._backend.instance_ready(instance) for instance in self._instances())
        except Exception:
            logger.exception("polling the readiness of an instance")
            return False
