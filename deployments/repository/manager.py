"""The repository manager: the one writer of what is served.

It scans the repositories, deploys and deletes the applications of model versions, and publishes routing
tables. The data plane goes on without it. Restarted, it takes what Serve still runs as its state.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import ray

from app.core.errors import InferError, invalid_arg, unavailable, unsupported
from app.core.log import configure_logging
from app.routing.table import NO_VERSION, ModelState, VersionEntry
from app.settings import ServerSettings
from deployments.repository import applications
from deployments.repository.applications import Found
from deployments.repository.board import Board
from deployments.repository.catalog import Candidate, Catalog
from deployments.repository.ensemble_loads import EnsembleLoads
from deployments.repository.ensembles import effective, is_ensemble
from deployments.repository.planner import plan_load
from deployments.repository.report import load_failure, status_table
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_PROGRESS_S = 5.0
_ADOPT_S = 30.0
"""How long a restarted manager waits for an application that Serve is bringing back itself."""


class _Turn:
    """Whose turn it is to change one model."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class RepositoryManager:
    """One replica; a plain class that `app/main.py` makes a deployment.

    Loads of different models run in parallel, operations on one model one after the other.
    """

    def __init__(self, settings: ServerSettings, key: bytes, ingress: tuple[str, str]) -> None:
        """`ingress` is the application and deployment name of those who watch."""
        configure_logging(settings)
        self._settings = settings
        self._key = key
        self._ingress = ingress
        self._catalog = Catalog(settings, key)
        self._board = Board()
        self._entries: dict[str, dict[int, VersionEntry]] = {}
        self._ensembles = EnsembleLoads(self._catalog, self._entries)
        self._loaded: dict[str, ModelSpec] = {}
        self._generations: dict[tuple[str, int], int] = defaultdict(int)
        self._turns: dict[str, _Turn] = {}
        self._loads = asyncio.Semaphore(settings.model_load_thread_count)
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
        rows: list[tuple[str, str, str, str]] = []
        for entry in effective(self._entries):
            number = "" if entry.version == NO_VERSION else str(entry.version)
            rows.append((entry.name, number, entry.state.value, entry.reason))
        on_disk = await asyncio.to_thread(self._catalog.scan)
        for name, model in on_disk.items():
            if name not in self._entries:
                rows.append((name, "", "UNAVAILABLE" if model.reason else "", model.reason))
        return sorted(rows)

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model on request; returns when every ingress routes to it.

        Raises:
            InferError: Triton's texts; what was served before still is.
        """
        self._require_explicit()
        await self._ensure_recovered()
        if files:
            raise unsupported("loading a model from the files of a request is not available in this release")
        self._ensembles.asked_for(name)
        await self._load(name, config)
        failed = [
            e
            for e in effective(self._entries)
            if e.name == name and e.state is ModelState.UNAVAILABLE and not e.deliberately_unloaded
        ]
        await self._publish_settled()
        if failed:
            raise invalid_arg(load_failure(name, failed))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service; unknown models are no error (as in Triton)."""
        self._require_explicit()
        await self._ensure_recovered()
        unneeded = self._ensembles.unneeded(name) if unload_dependents else []
        async with self._exclusive(name):
            await self._retire(self._versions(name))
        await asyncio.gather(*(self.unload(model, unload_dependents) for model in unneeded))

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
        self._look_at_cluster()
        on_disk = await asyncio.to_thread(self._catalog.scan)
        names = sorted({*self._catalog.startup_models(on_disk), *self._out_of_reach()})
        progress = asyncio.create_task(self._report_progress(names))
        try:
            await asyncio.gather(*(self._load_quietly(name) for name in names))
        finally:
            progress.cancel()
        self._initialised = True
        await self._publish_settled()
        logger.info("\n%s", status_table(self._board.table))

    def _out_of_reach(self) -> set[str]:
        """Adopted models whose channels want another key: those of before a new deployment of the server."""
        return {spec.name for spec in self._loaded.values() if spec.key != self._key}

    def _look_at_cluster(self) -> None:
        """Learn what GPUs there are; warn of nodes out of reach."""
        cluster: Any = ray
        alive = [node for node in cluster.nodes() if node["Alive"]]
        most = max((int(node["Resources"].get("GPU", 0)) for node in alive), default=0)
        self._catalog.gpus = tuple(range(most))
        nodes = len(alive)
        if nodes > 1 and self._settings.channel_address != "node":
            logger.warning(
                "the cluster has %d nodes, but replicas listen on %s only: models on other nodes than their "
                "ingress are out of reach; set channel_address to 'node'",
                nodes,
                self._settings.channel_address,
            )

    async def _load_quietly(self, name: str, path: tuple[str, ...] = ()) -> None:
        try:
            await self._load(name, None, path)
        except Exception as error:  # whatever is wrong with one model, the others load
            known = isinstance(error, InferError)
            reason = error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"
            logger.error("failed to load '%s': %s", name, reason, exc_info=None if known else error)
            if not self._versions(name):
                self._set(VersionEntry(name, NO_VERSION, ModelState.UNAVAILABLE, reason))
        await self._publish()

    async def _recover(self) -> None:
        """Adopt the newest generation that serves of each model version Serve runs; delete the others."""
        found: dict[tuple[str, int], list[Found]] = defaultdict(list)
        for application in await applications.listed():
            found[(application.model, application.version)].append(application)
        await asyncio.gather(*(self._adopt(versions) for versions in found.values()))
        if self._entries:
            on_disk = await asyncio.to_thread(self._catalog.scan)
            for entry in await asyncio.to_thread(self._ensembles.adopted, on_disk.values()):
                self._set(entry)

    async def _adopt(self, generations: list[Found]) -> None:
        adopted = False
        for found in sorted(generations, key=lambda each: each.generation, reverse=True):
            key = (found.model, found.version)
            self._generations[key] = max(self._generations[key], found.generation)
            description = await self._description(found) if found.up and not adopted else None
            if description is not None:
                adopted = True
                self._serve(description)
            else:
                self._spawn(applications.delete(found.application))

    async def _description(self, found: Found) -> Description | None:
        """What an application serves; None when it does not."""
        try:
            async with asyncio.timeout(_ADOPT_S):
                description = await applications.describe(found.model, found.application)
        except Exception as error:
            logger.warning("application '%s' does not answer and is replaced: %r", found.application, error)
            return None
        return None if description.error else description

    async def _load(self, name: str, override: str | None, path: tuple[str, ...] = ()) -> None:
        """Load a model; `path` are the ensembles for which it is loaded."""
        candidate = await asyncio.to_thread(self._catalog.candidate, name, override)
        if self._settings.model_control_mode == "explicit":
            # Before the turn is taken: ensembles that call each other must not wait for each other.
            await self._ensembles.load_steps(candidate, path, self._load_quietly)
        async with self._exclusive(name):
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override)
            unchanged = await asyncio.to_thread(self._unchanged, candidate, self._versions(name))
            plan = plan_load(candidate.versions, self._versions(name), unchanged)
            if is_ensemble(candidate.config):
                for entry in await asyncio.to_thread(self._ensembles.loaded, candidate):
                    self._set(entry)
                await self._retire(plan.retire)
                return
            outcomes = await asyncio.gather(
                *(self._start_version(candidate, version) for version in plan.start), return_exceptions=True
            )
            for outcome in outcomes:  # only now: no version may still be loading when the model is free again
                if isinstance(outcome, BaseException):
                    raise outcome
            # What was served goes when all is there that is to be served instead.
            await self._retire(e for e in plan.retire if all(outcomes) or not e.application)

    def _unchanged(self, candidate: Candidate, entries: Iterable[VersionEntry]) -> list[int]:
        """Versions that a load would bring nothing new to; reads the disk."""
        loaded = [(e.version, self._loaded.get(e.application)) for e in entries]
        return [version for version, spec in loaded if spec is not None and candidate.unchanged(spec)]

    @asynccontextmanager
    async def _exclusive(self, name: str) -> AsyncIterator[None]:
        """One operation on a model at a time. Names come from clients: an idle one leaves nothing behind."""
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]

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
        async with self._loads:
            description = await self._deploy(candidate, version)
        if description.error:
            if ready:
                raise invalid_arg(
                    f"load failed for model '{name}': version {version}: {description.error};\n"
                )
            self._set(VersionEntry(name, version, ModelState.UNAVAILABLE, description.error))
            return False
        self._serve(description)
        if ready and previous is not None:
            await self._switch(previous)
        logger.info("successfully loaded '%s' version %d", name, version)
        return True

    async def _deploy(self, candidate: Candidate, version: int) -> Description:
        """Deploy a version, again as often as `model_load_retry_count` says; what fails is deleted."""
        for _ in range(self._settings.model_load_retry_count + 1):
            logger.info("loading: %s:%d", candidate.name, version)
            description = await self._deploy_once(candidate, version)
            if not description.error:
                break
            logger.error("failed to load '%s' version %d: %s", candidate.name, version, description.error)
            self._spawn(applications.delete(description.spec.application))
        return description

    async def _deploy_once(self, candidate: Candidate, version: int) -> Description:
        key = (candidate.name, version)
        self._generations[key] += 1
        application = applications.application_name(*key, self._generations[key])
        spec = msgspec.structs.replace(candidate.template, version=version, application=application)
        limit = self._settings.model_load_timeout_secs
        try:
            async with asyncio.timeout(limit):
                spec = await asyncio.to_thread(candidate.spec, version, application)
                return await applications.deploy(spec)
        except TimeoutError:
            return Description(spec, error=f"Internal: not loaded within {limit} s (model_load_timeout_secs)")
        except InferError as error:
            return Description(spec, error=error.with_code())
        except Exception as error:
            logger.exception("deploying application '%s'", application)
            return Description(spec, error=f"Internal: {type(error).__name__}: {error}")

    async def _switch(self, previous: VersionEntry) -> None:
        """Route to the new application, then let the old one finish and go."""
        await self._publish_settled()
        self._loaded.pop(previous.application, None)
        self._spawn(applications.delete(previous.application))

    async def _retire(self, entries: Iterable[VersionEntry]) -> None:
        """Take versions out of service: first no ingress routes to them, then their applications go."""
        retired = [entry for entry in entries if not entry.deliberately_unloaded]
        served = [entry for entry in retired if entry.application]
        for entry in served:
            self._set(msgspec.structs.replace(entry, state=ModelState.UNLOADING))
        if served:
            await self._publish_settled()
            await asyncio.gather(*(applications.delete(entry.application) for entry in served))
        for entry in retired:
            self._loaded.pop(entry.application, None)
            self._set(VersionEntry(entry.name, entry.version, ModelState.UNAVAILABLE, "unloaded"))
            logger.info("successfully unloaded '%s' version %d", entry.name, entry.version)
        if retired:
            await self._publish_settled()

    def _serve(self, description: Description) -> None:
        spec = description.spec
        self._loaded[spec.application] = spec
        self._set(
            VersionEntry(
                spec.name,
                spec.version,
                ModelState.READY,
                application=spec.application,
                config=description.config,
                labels=description.labels,
            )
        )

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

    async def _report_progress(self, names: list[str]) -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            waiting = [n for n in names if all(e.state is ModelState.LOADING for e in self._versions(n))]
            logger.info(
                "loading models: %d of %d done, waiting for %s",
                len(names) - len(waiting),
                len(names),
                ", ".join(waiting),
            )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
