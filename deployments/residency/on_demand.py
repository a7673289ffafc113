"""Models on demand: which are listed without a replica, which stay in memory, and what a request loads."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from itertools import chain
from typing import Any, Final, Protocol

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.encoding import to_msgpack
from app.core.errors import InferError, invalid_arg, not_found, unavailable
from app.core.identifiers import name_of
from app.core.residency import ResidencyReport, UseReport
from app.routing.table import IDLE, UNLOADED, ModelState, VersionEntry
from app.settings.settings import ServerSettings
from deployments.residency.demands import Demands
from deployments.residency.residency import Kept, Residency
from deployments.spec import ModelSpec

PINNED: Final = "pinned"
"""The model parameter that keeps a model in memory."""
_LISTED_TOGETHER: Final = 8
"""Models whose configurations are read at the same time."""


class Locks(Protocol):
    """The locks of models."""

    def users(self, name: str) -> int: ...

    def acquire(self, name: str) -> AbstractAsyncContextManager[object]: ...


class Ensembles(Protocol):
    """Reads models, and knows which of them ensembles call."""

    def listed(self, name: str) -> list[VersionEntry]: ...

    def steps(self, entry: VersionEntry) -> list[str]: ...


class Deployer(Protocol):
    """Starts applications where there is room in memory for them, and deletes them."""

    room: Callable[[str, int, int], AbstractAsyncContextManager[None]]

    async def delete(self, application: str, kill: bool = False) -> None: ...


class Models(Protocol):
    """The life cycle of models."""

    @property
    def entries(self) -> Mapping[str, Mapping[int, VersionEntry]]: ...

    @property
    def loaded(self) -> MutableMapping[str, ModelSpec]: ...

    @property
    def locks(self) -> Locks: ...

    @property
    def ensembles(self) -> Ensembles: ...

    @property
    def deployer(self) -> Deployer: ...

    async def load(self, name: str, override: str | None) -> str: ...

    def refuse(self, name: str, error: Exception) -> None: ...

    def set_entry(self, entry: VersionEntry) -> None: ...

    async def publish_and_wait(self) -> None: ...


class Repositories(Protocol):
    """The repositories on disk."""

    def scan(self) -> Mapping[str, Any]: ...

    def startup_models(self, on_disk: Any) -> list[str]: ...


def is_pinned(config: mc.ModelConfig) -> bool:
    """Return whether a model is to stay in memory.

    Raises:
        InferError: INVALID_ARG when the parameter is neither true nor false.
    """
    if PINNED not in config.parameters:
        return False
    text = str(config.parameters[PINNED].string_value)
    if text not in ("true", "false"):
        raise invalid_arg(f"model '{config.name}': parameter '{PINNED}' must be true or false, got '{text}'")
    return text == "true"


class OnDemand:
    """Loads models when requests ask for them, within `--model-memory-bytes`.

    Args:
        settings: the server's settings; the models of `--load-model` stay in memory.
        models: loads and deletes them.
        in_rollout: returns models of which no version may be evicted.
    """

    def __init__(
        self, settings: ServerSettings, models: Models, in_rollout: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._named = frozenset(settings.repository.startup_models)
        self._explicit = settings.repository.control_mode == "explicit"
        self._models = models
        self._in_rollout = in_rollout
        budget = settings.residency.memory_bytes
        self.residency = Residency(budget, lambda: models.loaded, self._kept, self._evict)
        self.demands = Demands(self._load)
        models.deployer.room = self.residency.room

    @property
    def enabled(self) -> bool:
        """Whether models are loaded by their first request."""
        return self.residency.budget > 0

    async def start(
        self, repositories: Repositories, routed: Callable[[], Awaitable[Collection[tuple[str, int]] | None]]
    ) -> None:
        """List the models that their first request loads, before a table would take them out of service.

        Args:
            repositories: what is on disk; not being able to read it is reported later.
            routed: returns the models without a replica that ingresses route to: those of EXPLICIT mode.
        """
        if not self.enabled:
            return
        try:
            on_disk = await asyncio.to_thread(repositories.scan)
        except InferError:
            return
        if self._explicit:
            listed = {name for name, _ in await routed() or () if name in on_disk}
        else:
            listed = set(repositories.startup_models(on_disk))
        await self.register(listed - self._models.entries.keys())

    async def register(self, names: Iterable[str]) -> None:
        """List models that are not in memory as idle; ensembles are served."""
        limit = asyncio.Semaphore(_LISTED_TOGETHER)

        async def one(name: str) -> None:
            async with limit:
                self.demands.forget(name)
                try:
                    await self._list(name)
                except Exception as error:  # a model that cannot be read must not stop others
                    self._models.refuse(name, error)

        await asyncio.gather(*map(one, names))

    async def relist(self, name: str) -> bool:
        """List a model anew, as its files have changed; False for one in memory, which is to be loaded."""
        if not self.enabled or self.resident(name):
            return False
        await self.register([name])
        await self._models.publish_and_wait()
        return True

    async def _list(self, name: str) -> None:
        models = self._models
        async with models.locks.acquire(name):
            listed = {
                entry.version: entry for entry in await asyncio.to_thread(models.ensembles.listed, name)
            }
            for entry in listed.values():
                is_pinned(entry.model_config)
            for version in models.entries.get(name, {}).keys() - listed.keys():
                models.set_entry(VersionEntry(name, version, ModelState.UNAVAILABLE, UNLOADED))
            for entry in listed.values():
                models.set_entry(entry)

    async def _evict(self, name: str) -> None:
        """Take a model out of memory; return when its processes have ended. Its next request loads it."""
        models = self._models
        async with models.locks.acquire(name):
            ended = [entry for entry in self._versions(name) if entry.application in models.loaded]
            for entry in ended:
                models.set_entry(msgspec.structs.replace(entry, application="", reason=IDLE))
                del models.loaded[entry.application]
            await models.publish_and_wait()
            await asyncio.gather(*(models.deployer.delete(entry.application) for entry in ended))

    def resident(self, name: str) -> bool:
        """Return whether a model is in memory, or to stay there."""
        in_memory = any(entry.application in self._models.loaded for entry in self._versions(name))
        return in_memory or self._pinned(name)

    def wanted(self, names: Iterable[str]) -> set[str]:
        """Return those of some models that are to be loaded without a request, with those that they call."""
        if not self.enabled:
            return set(names)
        found: set[str] = set()
        waiting = [name for name in names if self.resident(name)]
        while waiting:
            name = waiting.pop()
            found.add(name)
            waiting += [step for step in self._steps(name) if step not in found]
        return found

    async def bring(self, name: str) -> None:
        """Have a model served; return when every ingress routes to it.

        Raises:
            InferError: why it is not.
        """
        if not self._versions(name):
            raise not_found(f"Request for unknown model: '{name}' is not found")
        if self._is_idle(name) or self._idle_steps(name):
            await self.demands.bring(name)

    def report(self, uses: bytes) -> bytes:
        """Record what replicas use (a `UseReport`); return a `ResidencyReport`; both msgpack."""
        self.residency.report(msgspec.msgpack.decode(uses, type=UseReport))
        return to_msgpack(self.figures())

    def figures(self) -> ResidencyReport:
        """Return the figures of all models."""
        every = self._models.entries.values()
        ready = (any(e.state is ModelState.READY for e in versions.values()) for versions in every)
        return self.residency.summary(sum(ready), self.demands.started, self.demands.failed)

    async def _load(self, name: str) -> None:
        if steps := self._idle_steps(name):
            await asyncio.gather(*map(self.demands.bring, steps))
        elif failure := await self._models.load(name, None):
            raise unavailable(failure.strip())
        await self._models.publish_and_wait()

    def _versions(self, name: str) -> Collection[VersionEntry]:
        return self._models.entries.get(name, {}).values()

    def _steps(self, name: str) -> set[str]:
        ready = (entry for entry in self._versions(name) if entry.state is ModelState.READY)
        return set(chain.from_iterable(self._models.ensembles.steps(entry) for entry in ready))

    def _idle_steps(self, name: str) -> list[str]:
        """Return the models that an ensemble calls, directly or not, and that are not in memory."""
        called, waiting = set[str](), [name]
        while waiting:
            steps = self._steps(waiting.pop()) - called
            called |= steps
            waiting += steps
        return sorted(step for step in called if self._is_idle(step))

    def _is_idle(self, name: str) -> bool:
        idle = (entry for entry in self._versions(name) if entry.idle)
        return any(not (entry.ensemble or entry.application) for entry in idle)  # scaled to none is not idle

    def _pinned(self, name: str) -> bool:
        if name_of(name) in self._named or "*" in self._named:
            return True
        try:
            return any(is_pinned(entry.model_config) for entry in self._versions(name) if entry.config)
        except InferError:
            return False

    def _kept(self) -> Kept:
        kept: dict[str, str] = {}
        rollouts = set(self._in_rollout())
        for spec in self._models.loaded.values():
            if why := self._reason_to_stay(spec, rollouts):
                kept[spec.identifier] = why
        ensembles = {name: steps for name in self._models.entries if (steps := self._steps(name))}
        for name in ensembles:
            if self._pinned(name):
                kept |= dict.fromkeys(self.wanted([name]), "is pinned")
        return Kept(kept, list(ensembles.values()))

    def _reason_to_stay(self, spec: ModelSpec, rollouts: Collection[str]) -> str:
        name = spec.identifier
        if self._pinned(name):
            return "is pinned"
        if spec.overridden:
            return "has the configuration or files of a load request"
        if self._models.locks.users(name):
            return "is being loaded or unloaded"
        return "is in a rollout" if name in rollouts else ""
