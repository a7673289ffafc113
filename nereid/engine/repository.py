"""The repository manager of a process without a cluster."""

import asyncio
import os
import secrets
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Final, NamedTuple

from app.core.cost.reports import CostAnswer, CostReport
from app.core.drift.counts import DriftAnswer, DriftReport
from app.core.drift.status import DriftStatus
from app.core.errors import InferError, unsupported
from app.core.files.private_files import private_root
from app.core.rollout.history import RolloutHistory
from app.core.rollout.status import RolloutChange, RolloutStatus
from app.core.system.tasks import Tasks
from app.dispatch.router import Router
from app.ingress.tracing.observer import Observer
from app.routing.manager_client import LoadRequest
from app.routing.table import ModelState
from app.settings.settings import ServerSettings
from deployments.cost.book import open_book
from deployments.manager.drift import drift_monitor
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.loading.load_messages import not_explicit
from deployments.manager.polling import Poller
from deployments.manager.requests import Requests
from deployments.model_store.config_overrides import ConfigOverrides
from deployments.model_store.overrides import Overrides
from deployments.rollout.rollouts import Rollouts
from deployments.rollout.states.selection import Choice, Offer
from deployments.rollout.storage.documents import Storage
from deployments.rollout.storage.ledger import Ledger
from deployments.rollout.storage.records import Records
from nereid.engine.local_replica import LocalApplications
from nereid.engine.local_routing import LocalPublisher

_NOBODY: Final = ("", "")
"""The application of the ingresses, of which there are none."""


class Applied(NamedTuple):
    """What was done with a model whose files have changed.

    Attributes:
        name: its identifier.
        present: whether it is still there, and was loaded; else it was unloaded.
        seconds: that took.
        error: why it could not be loaded; "" for a success.
    """

    name: str
    present: bool
    seconds: float
    error: str = ""


class LocalRepository:
    """Loads and unloads the models of repositories. Runs on the data-plane loop.

    The `Repository` of an inference service, and what models ask by `pb_utils.load_model`.

    Args:
        settings: the server's settings.
        applications: runs the model versions.
        router: routes by the published tables.

    Attributes:
        lifecycle: the state of each model.
        observers: of the fronts that are open; live settings are applied to them.
        watching: the drift of the models.
        account: what they and their clients consume.
    """

    def __init__(self, settings: ServerSettings, applications: LocalApplications, router: Router) -> None:
        self._settings = settings
        self.observers: list[Observer] = []
        limits = settings.model_store
        configs = ConfigOverrides(None, limits.config_override_bytes)
        files = Overrides(private_root() / "overrides", limits.override_bytes)
        self.catalog = Catalog(settings, secrets.token_bytes(32), overrides=configs)
        self.catalog.gpus = visible_gpus()
        self._publisher = LocalPublisher(router, settings.repository.namespacing)
        self._tasks = Tasks()
        self.lifecycle = Lifecycle(
            settings, self.catalog, self._publisher, _NOBODY, self._tasks, _AtOnce(applications), applications
        )
        self._requests = Requests(self.lifecycle, self.catalog, configs, files)
        self._poller = Poller({})
        self.watching = drift_monitor(self.lifecycle, self.catalog)
        self.account = open_book(settings, default=False)

    async def start(self) -> None:
        """Load the models of the start; one that fails is listed as such.

        Raises:
            InferError: a repository cannot be read.
        """
        lifecycle = self.lifecycle
        on_disk = await asyncio.to_thread(self.catalog.scan)
        self._poller = Poller(await asyncio.to_thread(self.catalog.fingerprints, on_disk))
        names = self.catalog.startup_models(on_disk)
        await asyncio.gather(*(lifecycle.load_quietly(name) for name in names))
        lifecycle.start_names = frozenset(names)
        lifecycle.initialised = True
        await lifecycle.publish()
        self._tasks.start(self.watching.run(lambda: False))
        self._tasks.start(self.account.run(lambda: False))

    async def index(self) -> list[tuple[str, str, str, str]]:
        """Return name, version, state and reason of every version, and names of models never loaded."""
        return self.watching.marked(await self._requests.index())

    async def load(self, asked: LoadRequest) -> None:
        """Load or reload a model, see `Requests.load`."""
        self._require_explicit()
        await self._requests.load(asked)
        await self.watching.look()

    async def registered(self) -> dict[str, str]:
        """Return the directories of models outside the repositories, by name."""
        return self._requests.registered()

    async def unload(
        self, name: str, unload_dependents: bool = False, requester: str = "", *, who: str = ""
    ) -> None:
        """Unload a model; see `RepositoryManager.unload`."""
        self._require_explicit()
        await self._requests.unload(name, unload_dependents, requester, who)

    async def rollout(self, name: str) -> RolloutStatus:
        """Refuse: rollouts need a cluster."""
        raise unsupported("there are no rollouts in a server of one process")

    async def change_rollout(self, name: str, change: RolloutChange, who: str) -> RolloutStatus:
        """Refuse: rollouts need a cluster."""
        raise unsupported("there are no rollouts in a server of one process")

    async def rollout_history(self, name: str) -> RolloutHistory:
        """Refuse: rollouts need a cluster."""
        raise unsupported("there are no rollouts in a server of one process")

    async def drift(self, name: str, version: str) -> DriftStatus:
        """Return the drift of a version of a model, see `DriftMonitor.status`."""
        return self.watching.status(self._publisher.table.identify(name), version)

    async def report_drift(self, report: DriftReport) -> DriftAnswer:
        """Add what this process has counted; return what is to be counted."""
        return self.watching.report(report)

    async def report_cost(self, report: CostReport) -> CostAnswer:
        """Add what this process has consumed; return all figures."""
        return await self.account.report(report)

    async def poll(self) -> list[Applied]:
        """Load and unload models as the files of the repositories are now; return what was done.

        With `startup_models`, only models that are known already are loaded.
        """
        on_disk = await asyncio.to_thread(self.catalog.scan)
        seen = await asyncio.to_thread(self.catalog.fingerprints, on_disk)
        changed = self._poller.observe(seen)
        present = {name for name, entry in on_disk.items() if not entry.ambiguous}
        wanted = {*self.catalog.startup_models(on_disk), *self.lifecycle.entries}
        applied = (self._apply(name, name in present) for name in changed if name in wanted)
        return list(await asyncio.gather(*applied))

    @property
    def loading(self) -> list[str]:
        """The models that are being loaded."""
        entries = list(self.lifecycle.entries.items())
        loading = ModelState.LOADING
        return [name for name, found in entries if any(each.state is loading for each in [*found.values()])]

    @property
    def settling(self) -> bool:
        """Whether the last `poll` has found a change that the next one applies, unless files change again."""
        return self._poller.settling

    async def _apply(self, name: str, present: bool) -> Applied:
        lifecycle, began, failure = self.lifecycle, time.monotonic(), ""
        if not present:
            await lifecycle.unload(name)
            return Applied(name, present, time.monotonic() - began)
        try:
            failure = await lifecycle.load(name, None)
        except Exception as error:
            lifecycle.refuse(name, error)
            failure = error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"
        await lifecycle.publish()
        await self.watching.look()
        return Applied(name, present, time.monotonic() - began, failure)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings, see `RoutingPublisher.configure`."""
        live = self._publisher.configure(change, current)
        for observer in self.observers:
            observer.apply(live)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        """Have something run until the end."""
        self._tasks.start(work)

    async def close(self) -> None:
        """End what runs in the background."""
        await self._tasks.cancel()
        self.account.close()

    def _require_explicit(self) -> None:
        if self._settings.repository.control_mode != "explicit":
            raise not_explicit(self._settings.repository.control_mode)


class _Nothing:
    """A store that keeps nothing."""

    def read(self, key: str) -> bytes | None:
        return None

    def write(self, key: str, value: bytes) -> None:
        pass

    def remove(self, key: str) -> None:
        pass

    def keys(self, prefix: str) -> list[str]:
        return []


class _AtOnce(Rollouts):
    """Rollouts of a process that has none: a new version takes over at once, whatever `rollout.yaml` says."""

    def __init__(self, applications: LocalApplications) -> None:
        storage = Storage(_Nothing())
        super().__init__(Records(storage), Ledger(storage), applications.stops)

    async def select(self, offer: Offer) -> Choice:
        return await super().select(offer._replace(policy=None))


def visible_gpus(devices: Path = Path("/dev")) -> tuple[int, ...]:
    """Return the CUDA ordinals of this process: none without a device, whatever CUDA_VISIBLE_DEVICES says."""
    present = len(list(devices.glob("nvidia[0-9]*")))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not (present or (devices / "dxg").exists()):  # dxg: all GPUs, in WSL
        return tuple(range(present))
    return tuple(range(len([each for each in visible.split(",") if each.strip() not in ("", "-1")])))
