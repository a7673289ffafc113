"""What becomes of model versions: loaded, updated, switched, retired. What `ModelLifeCycle` is to Triton."""

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
    """The state of every model version, and who alone changes it.

    Loads of different models run in parallel, operations on one model one after the other.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalog: Catalog,
        board: RoutingPublisher,
        ingress: tuple[str, str],
        spawn: Spawn,
    ) -> None:
        """`ingress` is the application and deployment name of those who route by what is published."""
        self._settings = settings
        self._catalog = catalog
        self._board = board
        self._ingress = ingress
        self._spawn = spawn
        self.entries: dict[str, dict[int, VersionEntry]] = {}
        self.loaded: dict[str, ModelSpec] = {}
        """What is deployed, by application."""
        self.turns = ModelLocks(settings.model_load_thread_count)
        self.deployer = Deployer(settings, board, self.turns, spawn)
        self.ensembles = EnsembleLoads(catalog, self.entries)
        self.initialised = False

    @property
    def effective(self) -> tuple[VersionEntry, ...]:
        """All entries; ensembles as ready as what they call."""
        return effective(self.entries)

    def versions(self, name: str) -> list[VersionEntry]:
        """A model's entries."""
        return list(self.entries.get(name, {}).values())

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service, and what was loaded for it alone if `unload_dependents`."""
        unneeded = self.ensembles.unneeded(name) if unload_dependents else []
        async with self.turns.of(name) as turn:
            await self._retire(self.versions(name), turn)
        await asyncio.gather(*(self.unload(each, unload_dependents) for each in unneeded))

    async def load_quietly(self, name: str, path: tuple[str, ...] = ()) -> None:
        """`load`; a failure becomes the reason of its entries."""
        try:
            await self.load(name, None, path=path)
        except Exception as error:  # whatever is wrong with one model, the others load
            known = isinstance(error, InferError)
            reason = error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"
            logger.error("failed to load '%s': %s", name, reason, exc_info=None if known else error)
            for entry in load_messages.failed_entries(name, self.versions(name), reason):
                self.set(entry)
        await self.publish()

    async def load(
        self, name: str, override: str | None, bundle: Bundle | None = None, path: tuple[str, ...] = ()
    ) -> str:
        """Load a model; `path` are the ensembles for which it is loaded.

        Returns:
            Which versions could not be loaded, see `load_failure`: as it is now, and not after the next load.

        Raises:
            InferError: what was served before still is.
        """
        if self._settings.model_control_mode == "explicit":
            # Before the lock is acquired: ensembles that call each other must not wait for each other.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            await self.ensembles.load_steps(candidate, path, self.load_quietly)
        async with self.turns.of(name) as turn:
            # Read under the lock, so that the last of several loads never applies an older configuration.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            plan = await asyncio.to_thread(candidate.plan, self.versions(name), self.loaded)
            begin = self._start_ensemble if is_ensemble(candidate.config) else self._start
            complete = await begin(candidate, plan)
            # What was served goes when all is there that is to be served instead.
            await self._retire([e for e in plan.retire if complete or not e.application], turn)
            return load_messages.load_failure(name, self.effective)

    async def _start_ensemble(self, candidate: Candidate, plan: LoadPlan) -> bool:
        """Serve an ensemble, also in the place of models that were of its name; returns True."""
        replaced = [
            application
            for application, spec in self.loaded.items()
            if spec.identifier == candidate.name and spec.version in candidate.versions
        ]
        for entry in await asyncio.to_thread(self.ensembles.loaded, candidate):
            self.set(entry)
        for application in replaced:
            await self._switch(application)
        return True

    async def _start(self, candidate: Candidate, plan: LoadPlan) -> bool:
        """Do what is planned for the versions that are wanted; returns whether all of them serve now.

        Raises:
            InferError: what was served before still is.
        """
        for version in plan.keep:
            self._refresh(candidate, version)
        outcomes = await asyncio.gather(
            *(self._start_version(candidate, version) for version in plan.start),
            *(self._update_version(candidate, version) for version in plan.update),
            return_exceptions=True,
        )
        for outcome in outcomes:  # only now: no version may still be loading when the model is free again
            if isinstance(outcome, BaseException):
                await self.publish_settled()  # other versions may serve now
                raise outcome
        return all(outcomes)

    def _refresh(self, candidate: Candidate, version: int) -> None:
        """Take over what a new configuration changes without a load: the version policy."""
        entry = self.entries[candidate.name][version]
        config = mc.ModelConfig.FromString(entry.config)
        config.version_policy.CopyFrom(candidate.config.version_policy)
        self.set(msgspec.structs.replace(entry, config=config.SerializeToString(), reason=""))
        self.loaded[entry.application] = msgspec.structs.replace(
            self.loaded[entry.application],
            config=candidate.template.config,
            overridden=candidate.template.overridden,
        )

    async def _start_version(self, candidate: Candidate, version: int) -> bool:
        """Load a version beside the one that serves; returns whether it serves now.

        Raises:
            InferError: the load failed, and what was READY before stays.
        """
        name = candidate.name
        previous = self.entries.get(name, {}).get(version)
        ready = previous is not None and previous.state is ModelState.READY
        if not ready:
            self.set(VersionEntry(name, version, ModelState.LOADING))
        description = await self.deployer.deploy(candidate, version)
        if description.error:
            if ready:
                raise load_messages.version_failure(description)
            self.set(VersionEntry(name, version, ModelState.UNAVAILABLE, description.error))
            return False
        self.serve(description)
        if ready and previous is not None and previous.application:  # an ensemble has none
            await self._switch(previous.application)
        logger.info("successfully loaded '%s' version %d", name, version)
        return True

    async def _update_version(self, candidate: Candidate, version: int) -> bool:
        """Change the instances of a version that goes on serving; returns True.

        Raises:
            InferError: they cannot be changed, and stay as they were.
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
        """Route to what is new, then let an application finish and go."""
        await self.publish_settled()
        self.loaded.pop(previous, None)
        self._spawn(applications.delete(previous))

    async def _retire(self, entries: Iterable[VersionEntry], turn: Operation) -> None:
        """Take versions out of service: first no ingress routes to them, then their applications go."""
        retired = [entry for entry in entries if not entry.unloaded_by_request]
        served = [entry for entry in retired if entry.application]
        for entry in served:
            self.set(msgspec.structs.replace(entry, state=ModelState.UNLOADING))
        if served:
            await self.publish_settled()
            await asyncio.gather(*(self._end(entry.application, turn) for entry in served))
        for entry in retired:
            self.loaded.pop(entry.application, None)
            self.set(VersionEntry(entry.name, entry.version, ModelState.UNAVAILABLE, "unloaded"))
            logger.info("successfully unloaded '%s' version %d", entry.name, entry.version)
        if retired:
            await self.publish_settled()

    async def _end(self, application: str, turn: Operation) -> None:
        """Delete an application; one that has to answer what waits for this goes later."""
        if self.turns.waits_for_end(turn, application):
            await applications.delete(application)
        else:
            self._spawn(applications.delete(application))

    def serve(self, description: Description) -> None:
        """Route to what is deployed, from the next table on."""
        spec = description.spec
        self.loaded[spec.application] = spec
        self.set(load_messages.ready_entry(description))

    def set(self, entry: VersionEntry) -> None:
        """Replace a version's entry."""
        versions = self.entries.setdefault(entry.name, {})
        if entry.version != NO_VERSION:
            versions.pop(NO_VERSION, None)
        versions[entry.version] = entry

    async def publish(self) -> int:
        """Tell every ingress of the entries; returns the table's number."""
        return await self._board.publish(self.effective, self.initialised)

    async def publish_settled(self) -> None:
        """Publish, and return when every ingress routes by what was published."""
        number = await self.publish()
        try:
            expected = await applications.running_replicas(*self._ingress)
        except Exception as error:  # Serve's controller is away: those who have watched before will do
            logger.warning("cannot ask Serve how many ingress replicas there are: %r", error)
            expected = 0
        await self._board.settled(number, expected)
