"""The repository manager: the one writer of what is served.

It scans the repositories, deploys and deletes the applications of model versions, and publishes routing
tables. The data plane goes on without it. Restarted, it takes what Serve still runs as its state.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping

import msgspec
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import InferError, invalid_arg, unavailable
from app.core.identifiers import name_of
from app.core.log import VERBATIM, LogConfig, configure_logging
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from app.settings import ServerSettings
from deployments.repository import applications, report
from deployments.repository.board import Board
from deployments.repository.cache import private_root
from deployments.repository.catalog import Candidate, Catalog, poll_failure
from deployments.repository.cluster import look_at_cluster
from deployments.repository.deployer import Deployer
from deployments.repository.ensemble_loads import EnsembleLoads
from deployments.repository.ensembles import effective, is_ensemble
from deployments.repository.overrides import Bundle, Overrides
from deployments.repository.polling import Poller
from deployments.repository.recovery import recover
from deployments.repository.turns import Operation, Turns, asked_by
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

poll_pause = asyncio.sleep


class RepositoryManager:
    """One replica; a plain class that `app/main.py` makes a deployment.

    Loads of different models run in parallel, operations on one model one after the other.
    """

    def __init__(self, settings: ServerSettings, key: bytes, ingress: tuple[str, str]) -> None:
        """`ingress` is the application and deployment name of those who watch."""
        configure_logging(LogConfig.of(settings))
        self._settings = settings
        self._key = key
        self._ingress = ingress
        self._catalog = Catalog(settings, key, ingress[0])
        self._overrides = Overrides(private_root() / "overrides", settings.model_override_bytes)
        self._board = Board(settings.model_namespacing)
        self._entries: dict[str, dict[int, VersionEntry]] = {}
        self._ensembles = EnsembleLoads(self._catalog, self._entries)
        self._loaded: dict[str, ModelSpec] = {}
        self._turns = Turns(settings.model_load_thread_count)
        self._deployer = Deployer(settings, self._board, self._turns, self._spawn)
        self._initialised = False
        self._background: set[asyncio.Task[None]] = set()
        self._start: asyncio.Task[None] | None = None
        self._recovered = asyncio.Event()

    async def watch(self, ingress: str, applied: int) -> bytes:
        """The next routing table (msgpack), for an ingress that routes by table `applied`."""
        await self._ensure_recovered()
        return msgspec.msgpack.encode(await self._board.watch(ingress, applied))

    async def receive(self, ingress: str, number: int) -> None:
        """An ingress has received table `number`."""
        await self._board.receive(ingress, number)

    async def status(self) -> bytes:
        """The current routing table (msgpack)."""
        await self._ensure_recovered()
        return msgspec.msgpack.encode(self._board.table)

    async def index(self) -> list[tuple[str, str, str, str]]:
        """Name, version, state and reason of every model version, and names of models never loaded."""
        await self._ensure_recovered()
        on_disk = await asyncio.to_thread(self._catalog.scan)
        return report.index_rows(effective(self._entries), on_disk)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes], asker: str = "") -> None:
        """Load or reload a model on request; returns when every ingress routes to it.

        `asker` is who waits for it, see `asked_by`.

        Raises:
            InferError: Triton's texts; what was served before still is.
        """
        self._require_explicit()
        await self._ensure_recovered()
        with asked_by(asker):
            await self._load_requested(name, config, files)

    async def _load_requested(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        models = [name] if files else await asyncio.to_thread(self._catalog.identifiers, name)
        with self._ensembles.requested(models):
            try:
                if files:
                    await self._load_files(name, config, files)
                else:
                    await self._load_each(models, config)
            finally:
                await self._release_overrides()
            failure = report.load_failure(models, effective(self._entries))
            await self._publish_settled()
        if failure:
            raise invalid_arg(failure)

    async def unload(self, name: str, unload_dependents: bool = False, asker: str = "") -> None:
        """Take a model out of service; unknown models are no error (as in Triton)."""
        self._require_explicit()
        await self._ensure_recovered()
        models = [model for model in self._entries if name_of(model) == name] or [name]
        if not asker:  # what serves or loads could be what such a load waits for
            await self._ensembles.not_needed(models)
        with asked_by(asker):
            await asyncio.gather(*(self._unload(model, unload_dependents) for model in models))

    async def _unload(self, model: str, unload_dependents: bool) -> None:
        unneeded = self._ensembles.unneeded(model) if unload_dependents else []
        async with self._turns.of(model) as turn:
            await self._retire(self._versions(model), turn)
        await self._release_overrides()
        await asyncio.gather(*(self._unload(each, unload_dependents) for each in unneeded))

    async def override_listing(self, digest: str) -> list[tuple[str, int]]:
        """Paths and sizes of the files of a load request, for a replica on another node."""
        return await asyncio.to_thread(self._overrides.listing, digest)

    async def override_chunk(self, digest: str, path: str, offset: int) -> bytes:
        """Some bytes of such a file."""
        return await asyncio.to_thread(self._overrides.read, digest, path, offset)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings, see `Board.configure`; returns when every ingress goes by them."""
        await self._ensure_recovered()
        configure_logging(self._board.configure(change, current).log)
        await self._publish_settled()

    async def check_health(self) -> None:
        """Serve's health hook."""
        self._ensure_started()
        if self._start is not None and self._start.done() and not self._start.cancelled():
            error = self._start.exception()
            if error is not None:
                raise RuntimeError(f"the repository manager could not start: {error}")

    def _ensure_started(self) -> None:
        # The constructor runs outside an event loop; the first call from Serve starts the work.
        if self._start is None:
            self._start = asyncio.get_running_loop().create_task(self._start_up())

    async def _ensure_recovered(self) -> None:
        """Wait until what Serve runs is known: a table without it would take it out of service."""
        self._ensure_started()
        await self._recovered.wait()

    def _require_explicit(self) -> None:
        if self._settings.model_control_mode != "explicit":
            raise unavailable("explicit model load / unload is not allowed if polling is enabled")

    def _versions(self, name: str) -> list[VersionEntry]:
        return list(self._entries.get(name, {}).values())

    async def _start_up(self) -> None:
        await self._recover()
        self._initialised = bool(self._entries)  # a restart of the manager does not make the server unready
        await self._publish()
        self._recovered.set()
        self._catalog.gpus = look_at_cluster(self._settings.channel_address)
        await self._release_overrides()
        on_disk = await asyncio.to_thread(self._catalog.scan)
        seen = await asyncio.to_thread(self._catalog.fingerprints, on_disk)
        poller = Poller({**dict.fromkeys(self._entries, "served"), **seen})
        wanted = set(self._catalog.startup_models(on_disk)) - self._overridden()
        names = sorted({*wanted, *self._out_of_reach()})
        progress = asyncio.create_task(report.report_progress(names, self._entries))
        try:
            await asyncio.gather(*(self._load_quietly(name) for name in names))
        finally:
            progress.cancel()
        self._initialised = True
        await self._publish_settled()
        logger.info("\n%s", report.status_table(self._board.table), extra=VERBATIM)
        if self._settings.model_control_mode == "poll":
            self._spawn(self._poll(poller))

    async def _poll(self, poller: Poller) -> None:
        """Follow the repositories; what cannot be read now is looked at again next time."""
        while True:
            await poll_pause(self._settings.repository_poll_secs)
            try:
                on_disk = await asyncio.to_thread(self._catalog.scan)
                changed = poller.observe(await asyncio.to_thread(self._catalog.fingerprints, on_disk))
                there = {name for name, entry in on_disk.items() if not entry.ambiguous}
                await asyncio.gather(*(self._follow(name, name in there) for name in changed))
            except Exception as error:
                logger.error("failed to poll the model repositories: %s", error)

    async def _follow(self, name: str, present: bool) -> None:
        if present:
            await self._load_quietly(name)
        else:
            async with self._turns.of(name) as turn:
                await self._retire(self._versions(name), turn)

    def _overridden(self) -> set[str]:
        """Models that a load request gave configuration or files: a restart does not take those back."""
        return {spec.identifier for spec in self._loaded.values() if spec.overridden}

    def _out_of_reach(self) -> set[str]:
        """Adopted models whose channels want another key: those of before a new deployment of the server."""
        return {spec.identifier for spec in self._loaded.values() if spec.key != self._key}

    async def _load_quietly(self, name: str, path: tuple[str, ...] = ()) -> None:
        try:
            await self._load(name, None, path=path)
        except Exception as error:  # whatever is wrong with one model, the others load
            known = isinstance(error, InferError)
            reason = error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"
            logger.error("failed to load '%s': %s", name, reason, exc_info=None if known else error)
            for entry in report.failed_entries(name, self._versions(name), reason):
                self._set(entry)
        await self._publish()

    async def _recover(self) -> None:
        """Take what Serve runs as what is served."""
        for description in await recover(self._deployer, self._spawn):
            if description.spec.bundle:
                await asyncio.to_thread(self._overrides.adopt, description.spec.bundle)
            self._serve(description)
        if self._entries:
            routed = await applications.routed_ensembles(*self._ingress)
            on_disk = await asyncio.to_thread(self._catalog.scan)
            for entry in await asyncio.to_thread(self._ensembles.adopted, on_disk.values(), routed):
                self._set(entry)

    async def _load_files(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        try:
            if not config:
                raise invalid_arg("Load parameter 'config' must be specified for model file override")
            bundle = await asyncio.to_thread(self._overrides.open, name, files)
        except InferError as error:
            raise poll_failure(name, error) from error
        try:
            await self._load(name, config, bundle)
        finally:
            self._overrides.close(bundle)

    async def _load_each(self, models: Iterable[str], config: str | None) -> None:
        """Load the models of one name, one in each namespace; what fails does not keep the others from it."""
        outcomes = await asyncio.gather(*(self._load(m, config) for m in models), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _release_overrides(self) -> None:
        served = {spec.bundle for spec in self._loaded.values()}
        await asyncio.to_thread(self._overrides.retain, served)

    async def _load(
        self, name: str, override: str | None, bundle: Bundle | None = None, path: tuple[str, ...] = ()
    ) -> None:
        """Load a model; `path` are the ensembles for which it is loaded."""
        candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
        if self._settings.model_control_mode == "explicit":
            # Before the turn is taken: ensembles that call each other must not wait for each other.
            await self._ensembles.load_steps(candidate, path, self._load_quietly)
        async with self._turns.of(name) as turn:
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override, bundle)
            plan = await asyncio.to_thread(candidate.plan, self._versions(name), self._loaded)
            if is_ensemble(candidate.config):
                for entry in await asyncio.to_thread(self._ensembles.loaded, candidate):
                    self._set(entry)
                await self._retire(plan.retire, turn)
                return
            for version in plan.keep:
                self._refresh(candidate, version)
            outcomes = await asyncio.gather(
                *(self._start_version(candidate, version) for version in plan.start),
                *(self._update_version(candidate, version) for version in plan.update),
                return_exceptions=True,
            )
            for outcome in outcomes:  # only now: no version may still be loading when the model is free again
                if isinstance(outcome, BaseException):
                    raise outcome
            # What was served goes when all is there that is to be served instead.
            await self._retire([e for e in plan.retire if all(outcomes) or not e.application], turn)

    def _refresh(self, candidate: Candidate, version: int) -> None:
        """Take over what a new configuration changes without a load: the version policy."""
        entry = self._entries[candidate.name][version]
        config = mc.ModelConfig.FromString(entry.config)
        config.version_policy.CopyFrom(candidate.config.version_policy)
        self._set(msgspec.structs.replace(entry, config=config.SerializeToString(), reason=""))
        self._loaded[entry.application] = msgspec.structs.replace(
            self._loaded[entry.application],
            config=candidate.template.config,
            overridden=candidate.template.overridden,
        )

    async def _start_version(self, candidate: Candidate, version: int) -> bool:
        """Load a version beside the one that serves; returns whether it serves now.

        Raises:
            InferError: the load failed, and what was READY before stays.
        """
        name = candidate.name
        previous = self._entries.get(name, {}).get(version)
        ready = previous is not None and previous.state is ModelState.READY
        if not ready:
            self._set(VersionEntry(name, version, ModelState.LOADING))
        description = await self._deployer.deploy(candidate, version)
        if description.error:
            if ready:
                raise report.version_failure(description)
            self._set(VersionEntry(name, version, ModelState.UNAVAILABLE, description.error))
            return False
        self._serve(description)
        if ready and previous is not None:
            await self._switch(previous)
        logger.info("successfully loaded '%s' version %d", name, version)
        return True

    async def _update_version(self, candidate: Candidate, version: int) -> bool:
        """Change the instances of a version that goes on serving; returns True.

        Raises:
            InferError: they cannot be changed, and stay as they were.
        """
        name = candidate.name
        loaded = self._loaded[self._entries[name][version].application]
        description = await self._deployer.update(candidate, loaded)
        if description.error:
            raise report.version_failure(description)
        self._serve(description)
        self._refresh(candidate, version)
        logger.info("successfully updated the instances of '%s' version %d", name, version)
        return True

    async def _switch(self, previous: VersionEntry) -> None:
        """Route to the new application, then let the old one finish and go."""
        await self._publish_settled()
        self._loaded.pop(previous.application, None)
        self._spawn(applications.delete(previous.application))

    async def _retire(self, entries: Iterable[VersionEntry], turn: Operation) -> None:
        """Take versions out of service: first no ingress routes to them, then their applications go."""
        retired = [entry for entry in entries if not entry.deliberately_unloaded]
        served = [entry for entry in retired if entry.application]
        for entry in served:
            self._set(msgspec.structs.replace(entry, state=ModelState.UNLOADING))
        if served:
            await self._publish_settled()
            await asyncio.gather(*(self._end(entry.application, turn) for entry in served))
        for entry in retired:
            self._loaded.pop(entry.application, None)
            self._set(VersionEntry(entry.name, entry.version, ModelState.UNAVAILABLE, "unloaded"))
            logger.info("successfully unloaded '%s' version %d", entry.name, entry.version)
        if retired:
            await self._publish_settled()

    async def _end(self, application: str, turn: Operation) -> None:
        """Delete an application; one that has to answer what waits for this goes later."""
        if self._turns.waits_for_end(turn, application):
            await applications.delete(application)
        else:
            self._spawn(applications.delete(application))

    def _serve(self, description: Description) -> None:
        spec = description.spec
        self._loaded[spec.application] = spec
        self._set(report.ready_entry(description))

    def _set(self, entry: VersionEntry) -> None:
        versions = self._entries.setdefault(entry.name, {})
        if entry.version != NO_VERSION:
            versions.pop(NO_VERSION, None)
        versions[entry.version] = entry

    async def _publish(self) -> int:
        return await self._board.publish(effective(self._entries), self._initialised)

    async def _publish_settled(self) -> None:
        """Publish, and return when every ingress routes by what was published."""
        number = await self._publish()
        try:
            expected = await applications.running_replicas(*self._ingress)
        except Exception as error:  # Serve's controller is away: those who have watched before will do
            logger.warning("cannot ask Serve how many ingress replicas there are: %r", error)
            expected = 0
        await self._board.settled(number, expected)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
