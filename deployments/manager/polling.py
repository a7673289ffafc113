"""Mode POLL: loads and unloads models as the repositories change."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from app.core.system.tasks import Tasks
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.deployer import ABANDON_S
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.loading.model_locks import LONG_LOAD_S
from deployments.residency.on_demand import OnDemand

logger = logging.getLogger(__name__)

poll_pause = asyncio.sleep

_SETTLE_S: Final = 0.1
"""How long changed files must rest; doubled as long as they change, up to the poll interval."""


class Poller:
    """Decides what to load, from successive scans; pure.

    Finds models that have changed and then stayed the same for one scan: half-copied ones are not loaded.

    Args:
        handled: the loaded models, each with a fingerprint of its files.
    """

    def __init__(self, handled: Mapping[str, str]) -> None:
        self._handled = dict(handled)
        self._seen = dict(handled)
        self.settling = False
        """Whether the last scan differs from the one before: a change is about to be reported."""

    def observe(self, seen: Mapping[str, str]) -> list[str]:
        """Return the models to load, and to unload where they are not in `seen`.

        Args:
            seen: the fingerprints of this scan, by model. A model is returned when its fingerprint is that of
                the last scan, but not that of its last load.
        """
        changed = [
            name
            for name in sorted({*self._handled, *seen})
            if self._seen.get(name) == seen.get(name) != self._handled.get(name)
        ]
        self.settling = seen != self._seen
        self._seen = dict(seen)
        for name in changed:
            if name in seen:
                self._handled[name] = seen[name]
            else:
                del self._handled[name]
        return changed


class Polling:
    """Carries out what a `Poller` finds.

    Args:
        lifecycle: loads and unloads.
        catalog: reads the repositories.
        on_demand: lists the models that requests load.
        tasks: what runs in the background.
        poller: knows what has been loaded.
    """

    def __init__(
        self, lifecycle: Lifecycle, catalog: Catalog, on_demand: OnDemand, tasks: Tasks, poller: Poller
    ) -> None:
        self._lifecycle = lifecycle
        self._catalog = catalog
        self._on_demand = on_demand
        self._tasks = tasks
        self._poller = poller

    async def run(self, interval_s: float, is_stopping: Callable[[], bool]) -> None:
        """Follow the repositories; a scan that fails is repeated next time."""
        settle_s = _SETTLE_S
        while not is_stopping():
            await poll_pause(min(settle_s, interval_s) if self._poller.settling else interval_s)
            settle_s = 2 * settle_s if self._poller.settling else _SETTLE_S
            try:
                on_disk = await asyncio.to_thread(self._catalog.scan)
                seen = await asyncio.to_thread(self._catalog.fingerprints, on_disk)
                present = {name for name, entry in on_disk.items() if not entry.ambiguous}
                await self._apply(self._poller.observe(seen), present)
            except Exception as error:
                if not is_stopping():
                    logger.error("failed to poll the model repositories: %s", error)

    async def _apply(self, changed: Iterable[str], present: Collection[str]) -> None:
        """Load and unload changed models; return when that is done, though not for loads that take long."""
        changes = [self._tasks.start(self._apply_change(name, name in present)) for name in changed]
        if changes:
            ended, _ = await asyncio.wait(changes, timeout=LONG_LOAD_S)
            for change in ended:
                change.result()

    async def _apply_change(self, name: str, present: bool) -> None:
        if not present:
            async with self._lifecycle.deployer.abandoning([name], ABANDON_S):
                await self._lifecycle.unload(name, wait=False)
        elif not await self._on_demand.relist(name):
            await self._lifecycle.load_quietly(name)
