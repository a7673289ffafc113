"""Loads, updates, replaces and retires model versions, as `ModelLifeCycle` in Triton's core."""

import asyncio
import logging
from collections.abc import Iterable

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from app.settings.settings import ServerSettings
from deployments.manager import applications, load_messages
from deployments.manager.catalog import Candidate, Catalog
from deployments.manager.deployer import Deployer, Spawn
from deployments.manager.ensemble_loads import EnsembleLoads
from deployments.manager.ensembles import effective, is_ensemble
from deployments.manager.model_locks import ModelLocks, Operation
from deployments.manager.planner import LoadPlan
from deployments.manager.routing_publisher import RoutingPublisher
from deployments.model_store.overrides import Bundle
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)


class Lifecycle:
    """The state of every model version, which only this class changes.

    Loads of different models run concurrently, operations on one model one after the other.

    Args:
        settings: the server's settings.
        catalog: reads the repositories.
        publisher: publishes the entries as routing tables.
        ingress: the application and deployment of the ingresses.
        spawn: runs a coroutine in the background.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalog: Catalog,
        publisher: RoutingPublisher,
        ingress: tuple[str, str],
        spawn: Spawn,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._publisher = publisher
        self._ingress = ingress
        self._spawn = spawn
        self.entries: dict[str, dict[int, VersionEntry]] = {}
        self.loaded: dict[str, ModelSpec] = {}
        """The specs of the deployed versions, by application."""
        self.locks = ModelLocks(settings.repository.load_threads)
        self.deployer = Deployer(settings, publisher, self.locks, spawn)
        self.ensembles = EnsembleLoads(catalog, self.entries)
        self.initialised = False

    @property
    def effective(self) -> tuple[VersionEntry, ...]:
        """All entries, with each ensemble in the state that the models it calls allow."""
        return effective(self.entries)

    def versions(self, name: str) -> list[VersionEntry]:
        """Return the entries of a model."""
        return list(self.entries.get(name, {}).values())

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service; with `unload_dependents` also the models loaded only for it."""
        unneeded = self.ensembles.unneeded(name) if unload_dependents else []
        async with self.locks.acquire(name) as operation:
            self._catalog.forget_override(name)
            await self._retire(self.versions(name), operation)
        await asyncio.gather(*(self.unload(each, unload_dependents) for each in unneeded))

    async def load_quietly(self, name: str, path: tuple[str, ...] = ()) -> None:
        """Load a model; a failure is logged and becomes the reason of its entries."""
        try:
            await self.load(name, None, path=path)
        except Exception as error:  # a failure of one model must not stop the load of others
            known = isinstance(error, InferError)
            reason = error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"
            logger.error("failed to load '%s': %s", name, reason, exc_info=None if known else error)
            for entry in load_messages.failed_entries(name, self.versions(name), reason):
                self.set_entry(entry)
        await self.publish()

    async def load(
        self, name: str, override: str | None, bundle: Bundle | None = None, path: tuple[str, ...] = ()
    ) -> str:
        """Load a model.

        Args:
            name: its identifier.
            override: a configuration as JSON instead of the one on disk.
            bundle: the files of a load request instead of those on disk.
            path: the ensembles for which it is loaded.

        Returns:
            The result of `load_failure`, read under the lock: a later load may change it.

        Raises:
            InferError: the load failed; versions that were served still are.
        """
        if self._settings.repository.control_mode == "explicit":
            # Before the lock is acquired: ensembles that call each other must not wait for each other.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            await self.ensembles.load_steps(candidate, path, self.load_quietly)
        async with self.locks.acquire(name) as operation:
            # Read under the lock, so that the last of several loads never applies an older configuration.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            plan = await asyncio.to_thread(candidate.plan, self.versions(name), self.loaded)
            begin = self._start_ensemble if is_ensemble(candidate.config) else self._start
            complete = await begin(candidate, plan)
            # Versions that were served are retired only when every new version is ready.
            await self._retire([e for e in plan.retire if complete or not e.application], operation)
            if complete:
                await asyncio.to_thread(self._catalog.keep_override, candidate, override)
            return load_messages.load_failure(name, self.effective)

    async def _start_ensemble(self, candidate: Candidate, plan: LoadPlan) -> bool:
        """Serve an ensemble, and replace deployed models of its name; return True."""
        replaced = [
            application
            for application, spec in self.loaded.items()
            if spec.identifier == candidate.name and spec.version in candidate.versions
        ]
        for entry in await asyncio.to_thread(self.ensembles.loaded, candidate):
            self.set_entry(entry)
        for application in replaced:
            await self._switch(application)
        return True

    async def _start(self, candidate: Candidate, plan: LoadPlan) -> bool:
        """Start, keep and update the planned versions; return whether all of them are served.

        Raises:
            InferError: a version failed; versions that were served still are.
        """
        for version in plan.keep:
            self._refresh(candidate, version)
        outcomes = await asyncio.gather(
            *(self._start_version(candidate, version) for version in plan.start),
            *(self._update_version(candidate, version) for version in plan.update),
            return_exceptions=True,
        )
        for outcome in outcomes:  # after all have ended: none may still load when the lock is released
            if isinstance(outcome, BaseException):
                await self.publish_and_wait()  # other versions may be ready
                raise outcome
        return all(outcomes)

    def _refresh(self, candidate: Candidate, version: int) -> None:
        """Apply the part of a new configuration that needs no load: the version policy."""
        entry = self.entries[candidate.name][version]
        config = mc.ModelConfig.FromString(entry.config)
        config.version_policy.CopyFrom(candidate.config.version_policy)
        self.set_entry(msgspec.structs.replace(entry, config=config.SerializeToString(), reason=""))
        self.loaded[entry.application] = msgspec.structs.replace(
            self.loaded[entry.application],
            config=candidate.template.config,
            overridden=candidate.template.overridden,
        )

    async def _start_version(self, candidate: Candidate, version: int) -> bool:
        """Load a version beside the one in service; return whether it is served.

        Raises:
            InferError: the load failed, and a version that was READY stays so.
        """
        name = candidate.name
        previous = self.entries.get(name, {}).get(version)
        ready = previous is not None and previous.state is ModelState.READY
        if not ready:
            self.set_entry(VersionEntry(name, version, ModelState.LOADING))
        description = await self.deployer.deploy(candidate, version)
        if description.error:
            if ready:
                raise load_messages.version_failure(description)
            self.set_entry(VersionEntry(name, version, ModelState.UNAVAILABLE, description.error))
            return False
        self.serve(description)
        if ready and previous is not None and previous.application:  # ensembles have no application
            await self._switch(previous.application)
        logger.info("successfully loaded '%s' version %d", name, version)
        return True

    async def _update_version(self, candidate: Candidate, version: int) -> bool:
        """Change the instances of a version that stays in service; return True.

        Raises:
            InferError: the change failed; the instances are as before.
        """
        name = candidate.name
        loaded = self.loaded[self.entries[name][version].application]
        description = await self.deployer.update(candidate, loaded)
        if description.error:
            raise load_messages.version_failure(description)
        self.serve(description)
        self._refresh(candidate, version)
        logger.info("successfully updated the instances of '%s' version %d", name, version)
        return True

    async def _switch(self, previous: str) -> None:
        """Publish the new entries, then drain and delete the previous application."""
        await self.publish_and_wait()
        self.loaded.pop(previous, None)
        self._spawn(applications.delete(previous))

    async def _retire(self, entries: Iterable[VersionEntry], operation: Operation) -> None:
        """Take versions out of service: ingresses stop routing to them, then their applications end."""
        retired = [entry for entry in entries if not entry.unloaded_by_request]
        served = [entry for entry in retired if entry.application]
        for entry in served:
            self.set_entry(msgspec.structs.replace(entry, state=ModelState.UNLOADING))
        if served:
            await self.publish_and_wait()
            await asyncio.gather(*(self._end(entry.application, operation) for entry in served))
        for entry in retired:
            self.loaded.pop(entry.application, None)
            self.set_entry(VersionEntry(entry.name, entry.version, ModelState.UNAVAILABLE, "unloaded"))
            logger.info("successfully unloaded '%s' version %d", entry.name, entry.version)
        if retired:
            await self.publish_and_wait()

    async def _end(self, application: str, operation: Operation) -> None:
        """Delete an application, in the background if one of its requests waits for this operation."""
        if self.locks.wait_on(operation, application):
            await applications.delete(application)
        else:
            self._spawn(applications.delete(application))

    def serve(self, description: Description) -> None:
        """Make a deployed version READY in the next table."""
        spec = description.spec
        self.loaded[spec.application] = spec
        self.set_entry(load_messages.ready_entry(description))

    def set_entry(self, entry: VersionEntry) -> None:
        """Replace the entry of a version."""
        versions = self.entries.setdefault(entry.name, {})
        if entry.version != NO_VERSION:
            versions.pop(NO_VERSION, None)
        versions[entry.version] = entry

    async def publish(self) -> int:
        """Publish the entries; return the number of the table."""
        return await self._publisher.publish(self.effective, self.initialised)

    async def publish_and_wait(self) -> None:
        """Publish the entries; return when every ingress routes by them."""
        number = await self.publish()
        try:
            expected = await applications.running_replicas(*self._ingress)
        except Exception as error:  # without Serve's controller, the ingresses known so far must do
            logger.warning("cannot count the ingress replicas: %r", error)
            expected = 0
        await self._publisher.wait_acknowledged(number, expected)
