"""Loads, updates, replaces and retires model versions, as `ModelLifeCycle` in Triton's core."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import invalid_arg
from app.core.system.tasks import Tasks
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings.settings import ServerSettings
from deployments.manager.loading import load_messages
from deployments.manager.loading.candidate import Candidate, LoadPlan
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.deployer import ABANDON_S, Applications, Deployer, running_replicas
from deployments.manager.loading.ensemble_loads import EnsembleLoads
from deployments.manager.loading.model_locks import ModelLocks, who_asked
from deployments.manager.publishing.ensembles import is_ensemble
from deployments.manager.publishing.entries import Entries
from deployments.manager.publishing.routing_publisher import RoutingPublisher
from deployments.model_store.overrides import Bundle
from deployments.rollout.rollouts import Begin, Rollouts
from deployments.spec import Description

logger = logging.getLogger(__name__)


class Lifecycle(Entries):
    """Changes the state of every model version; nothing else does.

    Loads of different models run concurrently, operations on one model one after the other.

    Args:
        settings: the server's settings.
        catalog: reads the repositories.
        publisher: publishes the entries as routing tables.
        ingress: the application and deployment of the ingresses.
        tasks: what runs in the background.
        rollouts: choose the versions of a load, and split the requests of a model.
        running: runs the versions.
    """

    def __init__(
        self,
        settings: ServerSettings,
        catalog: Catalog,
        publisher: RoutingPublisher,
        ingress: tuple[str, str],
        tasks: Tasks,
        rollouts: Rollouts,
        running: Applications,
    ) -> None:
        super().__init__()
        self._settings, self._catalog, self._publisher = settings, catalog, publisher
        self._ingress, self._tasks = ingress, tasks
        self.rollouts = rollouts
        self.locks = ModelLocks(settings.repository.load_threads)
        self.deployer = Deployer(settings, publisher, self.locks, tasks, running)
        self.ensembles = EnsembleLoads(catalog, self.entries, self.busy, rollouts.listed)
        self.initialised = self.failed = self.all_loaded = False  # see `RoutingTable`
        self.start_names: frozenset[str] | None = None  # known once their loads have ended

    async def unload(self, name: str, unload_dependents: bool = False, wait: bool = True) -> None:
        """Take a model out of service; with `unload_dependents` also the models loaded only for it.

        Returns when its replicas have ended, without `wait` when no ingress routes to it.
        """
        unneeded = self.ensembles.unneeded(name) if unload_dependents else []
        async with self.locks.acquire(name) as operation:
            await self._catalog.overrides.forget(name)
            await self.rollouts.unloaded(name)
            unloading = await self._retire(self.versions(name))
            await self._note(name)
            awaited = [e for e in unloading if wait and self.locks.wait_on(operation, e.application)]
            self._end_in_background(e for e in unloading if e not in awaited)
            await asyncio.gather(*(self._end(entry) for entry in awaited))
            if awaited:
                await self.publish_and_wait()
        await asyncio.gather(*(self.unload(each, unload_dependents) for each in unneeded))

    async def load_quietly(self, name: str, path: tuple[str, ...] = (), begin: Begin | None = None) -> None:
        """Load a model; a failure is logged, and its entries are as Triton's index shows them."""
        try:
            await self.load(name, None, path=path, begin=begin)
        except Exception as error:  # a failure of one model must not stop the load of others
            self.refuse(name, error)
        await self.publish()

    def refuse(self, name: str, error: Exception) -> None:
        """Log why a model cannot be loaded; list it as such, unless versions of it were loaded before."""
        load_messages.log_failure(name, error)
        if set(self.entries.get(name, ())) <= {NO_VERSION}:
            new = name not in self.entries
            self.set_entry(load_messages.unreadable_entry(name, error))
            if new:
                self._count_failure(name)

    async def load(
        self,
        name: str,
        override: str | None,
        bundle: Bundle | None = None,
        path: tuple[str, ...] = (),
        begin: Begin | None = None,
    ) -> str:
        """Load a model; return the result of `load_failure`, "" for a success.

        Args:
            name: its identifier.
            override: a configuration as JSON instead of the one on disk.
            bundle: the files of a load request instead of those on disk.
            path: the ensembles for which it is loaded.
            begin: begins a rollout of the model, as nothing else changes it; what it raises refuses that.

        Raises:
            InferError: the model could not be read; versions that were served still are.
        """
        try:
            if failure := await self._load(name, override, bundle, path, begin):
                self._count_failure(name)
        except Exception:
            if begin is None:
                self._count_failure(name)
            raise
        return failure

    def _count_failure(self, name: str) -> None:
        if name in self.entries:  # a client may request a load of any name
            self._publisher.load_failures[name] += 1
            self._tasks.start(self.publish())  # an error ends the operation before it publishes

    async def _load(
        self,
        name: str,
        override: str | None,
        bundle: Bundle | None,
        path: tuple[str, ...],
        begin: Begin | None,
    ) -> str:
        if self._settings.repository.control_mode == "explicit" and begin is None:
            # Before the lock is acquired: ensembles that call each other must not wait for each other.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            await self.ensembles.load_steps(candidate, path, self.load_quietly)
        async with self.locks.acquire(name):
            # Read under the lock: the last of several loads never applies an older configuration.
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            candidate = await self._select(candidate, begin)
            self.policies[name] = candidate.policies
            rollout = self.rollouts.loading(name, candidate.versions)
            plan = await asyncio.to_thread(candidate.plan, self.versions(name), self.loaded)
            carry_out = self._start_ensemble if is_ensemble(candidate.config) else self._start
            failed = await carry_out(candidate, plan)
            again = await self._settle(name, rollout, failed)
            # Versions that were served are retired only when every new version is ready.
            retired = await self._retire(e for e in plan.retire if not (failed and e.application))
            self._end_in_background(retired)
            if not failed:
                await self._catalog.overrides.keep(candidate.template)
            await self._note(name)
        if again:
            await self.load_quietly(name, path)
        return load_messages.load_failure(name, failed or load_messages.unavailable(name, self.effective))

    async def _note(self, name: str) -> None:
        mode = self._settings.repository.control_mode if self.initialised else ""
        why = load_messages.CAUSES.get(mode, "the start")
        await self.rollouts.served(name, self.ready(name), why, who_asked())

    async def retire(self, name: str, version: int) -> None:
        """Take a version out of service, or give up its load; its application ends after its requests."""
        entry = self.entries.get(name, {}).get(version)
        loads = [name] if entry is not None and entry.state is ModelState.LOADING else []
        async with self.deployer.abandoning(loads, ABANDON_S), self.locks.acquire(name):
            retired = await self._retire(e for e in self.versions(name) if e.version == version)
            self._end_in_background(retired)

    async def _select(self, candidate: Candidate, begin: Begin | None) -> Candidate:
        """Return a candidate with the versions that its rollout serves; one may begin or end now."""
        name = candidate.name
        offer = candidate.offer(self.running(name))
        offer = await begin(offer) if begin is not None else offer
        if candidate.template.bundle and self.rollouts.is_on(name):
            raise invalid_arg(
                f"model '{name}' has a rollout: promote or abort it before a load with other files"
            )
        choice = await self.rollouts.select(offer)
        if choice.begins is not None or choice.withdraws:
            await self.publish()
        if choice.stops is not None:
            unloading = await self._retire(e for e in self.versions(name) if e.version == choice.stops)
            await asyncio.gather(*(self._end(entry) for entry in unloading))
        return candidate._replace(versions=choice.versions, stable=choice.stable, percents=choice.percents)

    async def _settle(self, name: str, rollout: str, failed: Iterable[VersionEntry]) -> bool:
        """Let a rollout go on after its load; a failed candidate does not make the server unready.

        Returns:
            Whether the stable version is to be loaded, which waited for the candidate or was unloaded for it.
        """
        reasons = {entry.version: entry.reason for entry in failed}
        record = await self.rollouts.settle(name, rollout, reasons, self.versions(name))
        if record is None or record.status.candidate not in reasons:
            return False
        entry = self.entries[name][record.status.candidate]
        if entry.state is not ModelState.READY:
            self.set_entry(load_messages.unloaded_entry(entry))
        return self.ready_entry(name, record.status.stable) is None

    async def _start_ensemble(self, candidate: Candidate, plan: LoadPlan) -> list[VersionEntry]:
        """Serve an ensemble, and replace deployed models of its name; return []."""
        ready = (self.ready_entry(candidate.name, version) for version in candidate.versions)
        replaced = [entry for entry in ready if entry is not None and entry.application]
        for entry in await asyncio.to_thread(self.ensembles.loaded, candidate):
            self.set_entry(entry)
        load_messages.log_success(candidate.name, candidate.versions)
        await self._switch(replaced)
        return []

    async def _start(self, candidate: Candidate, plan: LoadPlan) -> list[VersionEntry]:
        """Start, keep and update the planned versions, all or none; return those that failed.

        With `--allow-partial-load` those that succeed are served whatever becomes of the others.
        """
        partial = self._settings.repository.allow_partial_load
        for version in plan.start:
            if self.ready_entry(candidate.name, version) is None:
                self.set_entry(VersionEntry(candidate.name, version, ModelState.LOADING))
        # All end before one is judged: none may still load when the lock is released.
        replicas = load_messages.scaled_replicas(self.versions(candidate.name))
        deploys = (self.deployer.deploy(candidate, version, replicas) for version in plan.start)
        outcomes = await asyncio.gather(*deploys)
        if partial or not any(outcome.error for outcome in outcomes):
            updates = (self._update(candidate, version) for version in plan.update)
            outcomes += await asyncio.gather(*updates)
        failed = [outcome for outcome in outcomes if outcome.error]
        loaded = [outcome for outcome in outcomes if not outcome.error]
        if failed and not partial:
            self._withdraw(loaded)
        else:
            await self._put_in_service(candidate, plan, loaded)
        return [self._fail(outcome) for outcome in failed]

    async def _update(self, candidate: Candidate, version: int) -> Description:
        application = self.entries[candidate.name][version].application
        scaled = load_messages.scaled_replicas(self.versions(candidate.name))
        return await self.deployer.update(candidate, self.loaded[application], scaled)

    async def _put_in_service(
        self, candidate: Candidate, plan: LoadPlan, loaded: Iterable[Description]
    ) -> None:
        """Serve versions that have loaded or changed their instances, each instead of the one before."""
        replaced, updated, fresh = list[VersionEntry](), list[int](), list[int]()
        for description in loaded:
            spec = description.spec
            before = self.ready_entry(candidate.name, spec.version)
            if before is not None and before.application not in ("", spec.application):
                replaced.append(before)  # an ensemble has no application
                self._publisher.lingering.keep(before)
            self.serve(description)
            (updated if spec.version in plan.update else fresh).append(spec.version)
        if fresh or not plan.start:
            load_messages.log_success(candidate.name, fresh, updated)
        for version in (each for each in (*plan.keep, *updated) if each != candidate.stable):
            self._refresh(candidate, version)
        await self._switch(replaced)

    def _withdraw(self, loaded: Iterable[Description]) -> None:
        """Unload versions that have loaded while others of the model failed."""
        for description in loaded:
            spec = description.spec
            if spec.application in self.loaded:  # its instances have changed, which is not undone
                self.serve(description)
                continue
            self._tasks.start(self.deployer.delete(spec.application))
            if self.ready_entry(spec.identifier, spec.version) is None:
                self.set_entry(load_messages.unloaded_entry(self.entries[spec.identifier][spec.version]))

    def _fail(self, failed: Description) -> VersionEntry:
        """Return the entry of a version that failed; it becomes the version's unless that is served."""
        served = self.ready_entry(failed.spec.identifier, failed.spec.version)
        entry = load_messages.failed_entry(failed, served)
        if served is None:
            self.set_entry(entry)
        return entry

    def busy(self, name: str) -> bool:
        """Return whether a model is being loaded or unloaded."""
        return self.locks.users(name) > 0

    def _refresh(self, candidate: Candidate, version: int) -> None:
        """Apply the part of a new configuration that needs no load: the version policy."""
        entry = self.entries[candidate.name][version]
        config = mc.ModelConfig.FromString(entry.config)
        config.version_policy.CopyFrom(candidate.config.version_policy)
        self.set_entry(msgspec.structs.replace(entry, config=config.SerializeToString(), reason=""))
        self.loaded[entry.application] = candidate.configured(self.loaded[entry.application])

    async def _switch(self, replaced: Sequence[VersionEntry]) -> None:
        """Publish the new entries if they replace others, then drain and delete the applications of those."""
        if replaced:
            await self.publish_and_wait()
        for entry in replaced:
            self.loaded.pop(entry.application, None)
        self._end_in_background(replaced)

    async def _retire(self, entries: Iterable[VersionEntry]) -> list[VersionEntry]:
        """Take versions out of service; return those whose applications are now to be ended.

        No ingress routes to them any more.
        """
        retired = [entry for entry in entries if not entry.unloaded_by_request]
        unloading = [msgspec.structs.replace(e, state=ModelState.UNLOADING) for e in retired if e.application]
        for entry in unloading:
            self.set_entry(entry)
            self.loaded.pop(entry.application, None)
            self._publisher.lingering.keep(entry)
        for entry in (each for each in retired if not each.application):
            self._unloaded(entry)
        if retired:
            await self.publish_and_wait()
        return unloading

    async def _end(self, entry: VersionEntry) -> None:
        """Delete the application of a version; it is unloaded then, unless a load has begun since."""
        if await self._publisher.lingering.ended(entry.application, lambda: bool(self.ready(entry.name))):
            await self.publish_and_wait()
        await self.deployer.delete(entry.application)
        if self.entries[entry.name].get(entry.version) is entry:
            self._unloaded(entry)
            await self.publish()

    def _unloaded(self, entry: VersionEntry) -> None:
        logger.info("successfully unloaded '%s' version %d", entry.name, entry.version)
        self.set_entry(load_messages.unloaded_entry(entry))

    def _end_in_background(self, entries: Iterable[VersionEntry]) -> None:
        for entry in entries:
            self._tasks.start(self._end(entry))

    async def change_served(self, application: str, **change: Any) -> None:
        """Change fields of the entry of a version in service, by its application."""
        for entry in [e for versions in self.entries.values() for e in versions.values()]:
            if entry.application == application and entry.state is ModelState.READY:
                self.set_entry(msgspec.structs.replace(entry, **change))
                await self.publish()

    async def publish(self) -> int:
        """Publish the entries; return the number of the table."""
        entries = self.effective
        self.ensembles.log_refused(entries if self.initialised else ())
        if (names := self.start_names) is not None and not self.all_loaded:
            tried = {(split.name, split.candidate) for split in self.rollouts.splits}
            wanted = (entry for entry in entries if entry.name in names)
            self.all_loaded = all(entry.loaded or (entry.name, entry.version) in tried for entry in wanted)
        content = RoutingTable(
            entries=entries,
            initialised=self.initialised,
            failed=self.failed,
            all_loaded=self.all_loaded,
            splits=self.rollouts.splits,
            rollout_failures=dict(self.rollouts.ledger.failures),
        )
        return await self._publisher.publish(content)

    async def publish_and_wait(self) -> None:
        """Publish the entries; return when every ingress routes by them."""
        number = await self.publish()
        expected = await running_replicas(self.deployer.running, *self._ingress)
        await self._publisher.wait_acknowledged(number, expected)
