"""The repository manager: the one writer of what is served.

It scans the repositories, deploys and deletes the applications of model versions, and publishes routing
tables. The data plane goes on without it. Restarted, it takes what Serve still runs as its state.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

import msgspec
import ray

from app.core.errors import ErrorCode, InferError, invalid_arg, unavailable, unsupported
from app.core.log import configure_logging
from app.routing.table import NO_VERSION, ModelState, RoutingTable, VersionEntry
from app.settings import ServerSettings
from deployments.repository import applications
from deployments.repository.board import Board
from deployments.repository.catalog import Candidate, Catalog
from deployments.repository.planner import plan_load
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

_CODE_TEXT = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "Cancelled",
}
_PROGRESS_S = 5.0


class RepositoryManager:
    """One replica; a plain class that `app/main.py` makes a deployment.

    Loads of different models run in parallel, operations on one model one after the other.
    """

    def __init__(self, settings: ServerSettings, key: bytes, ingress: tuple[str, str]) -> None:
        """`ingress` is the application and deployment name of those who watch."""
        configure_logging(settings)
        self._settings = settings
        self._ingress = ingress
        self._catalog = Catalog(settings, key)
        self._board = Board()
        self._entries: dict[str, dict[int, VersionEntry]] = {}
        self._loaded: dict[str, ModelSpec] = {}
        self._generations: dict[tuple[str, int], int] = defaultdict(int)
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
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
        for versions in self._entries.values():
            for entry in versions.values():
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
        await self._load(name, config)
        failed = [
            e
            for e in self._versions(name)
            if e.state is ModelState.UNAVAILABLE and not e.deliberately_unloaded
        ]
        await self._publish_settled()
        if failed:
            raise invalid_arg(_load_failure(name, failed))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Take a model out of service; unknown models are no error (as in Triton)."""
        self._require_explicit()
        await self._ensure_recovered()
        async with self._locks[name]:
            await self._retire(self._versions(name))

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
        self._check_channel_address()
        on_disk = await asyncio.to_thread(self._catalog.scan)
        names = self._catalog.startup_models(on_disk)
        progress = asyncio.create_task(self._report_progress(names))
        await asyncio.gather(*(self._load_quietly(name) for name in names))
        progress.cancel()
        self._initialised = True
        await self._publish_settled()
        logger.info("\n%s", status_table(self._board.table))

    def _check_channel_address(self) -> None:
        cluster: Any = ray
        nodes = len([node for node in cluster.nodes() if node["Alive"]])
        if nodes > 1 and self._settings.channel_address != "node":
            logger.warning(
                "the cluster has %d nodes, but replicas listen on %s only: models on other nodes than their "
                "ingress are out of reach; set channel_address to 'node'",
                nodes,
                self._settings.channel_address,
            )

    async def _load_quietly(self, name: str) -> None:
        try:
            await self._load(name, None)
        except InferError as error:
            logger.error("failed to load '%s': %s", name, error.message)
            if not self._versions(name):
                reason = f"{_CODE_TEXT[error.code]}: {error.message}"
                self._set(VersionEntry(name, NO_VERSION, ModelState.UNAVAILABLE, reason))
        await self._publish()

    async def _recover(self) -> None:
        """Adopt the newest generation of every model version that Serve runs; delete what it replaced."""
        newest: dict[tuple[str, int], tuple[int, str]] = {}
        for model, version, generation, application in await applications.running():
            previous = newest.get((model, version))
            stale = application
            if previous is None or previous[0] < generation:
                newest[(model, version)] = (generation, application)
                stale = previous[1] if previous else ""
            if stale:
                self._spawn(applications.delete(stale))
        await asyncio.gather(
            *(self._adopt(model, version, *found) for (model, version), found in newest.items())
        )

    async def _adopt(self, model: str, version: int, generation: int, application: str) -> None:
        self._generations[(model, version)] = generation
        try:
            description = await applications.describe(model, application)
        except Exception as error:
            logger.warning("application '%s' does not answer and is replaced: %s", application, error)
            await applications.delete(application)
            return
        if description.error:
            await applications.delete(application)
            return
        self._serve(description)

    async def _load(self, name: str, override: str | None) -> None:
        async with self._locks[name]:
            candidate = await asyncio.to_thread(self._catalog.candidate, name, override)
            unchanged = [
                e.version
                for e in self._versions(name)
                if candidate.unchanged(self._loaded.get(e.application))
            ]
            plan = plan_load(candidate.versions, self._versions(name), unchanged)
            await asyncio.gather(*(self._start_version(candidate, version) for version in plan.start))
            await self._retire(plan.retire)

    async def _start_version(self, candidate: Candidate, version: int) -> None:
        name = candidate.name
        previous = self._entries.get(name, {}).get(version)
        if previous is None or previous.state is not ModelState.READY:
            self._set(VersionEntry(name, version, ModelState.LOADING))
        self._generations[(name, version)] += 1
        generation = self._generations[(name, version)]
        spec = candidate.spec(version, applications.application_name(name, version, generation))
        async with self._loads:
            logger.info("loading: %s:%d", name, version)
            try:
                description = await applications.deploy(spec)
                error = description.error
            except InferError as failure:
                error = f"{_CODE_TEXT[failure.code]}: {failure.message}"
        if error:
            self._spawn(applications.delete(spec.application))
            logger.error("failed to load '%s' version %d: %s", name, version, error)
            if previous is None or previous.state is not ModelState.READY:
                self._set(VersionEntry(name, version, ModelState.UNAVAILABLE, error))
                return
            raise invalid_arg(f"load failed for model '{name}': version {version}: {error};\n")
        self._serve(description)
        if previous is not None and previous.state is ModelState.READY:
            await self._switch(previous)
        logger.info("successfully loaded '%s' version %d", name, version)

    async def _switch(self, previous: VersionEntry) -> None:
        """Route to the new application, then let the old one finish and go."""
        await self._publish_settled()
        self._loaded.pop(previous.application, None)
        self._spawn(applications.delete(previous.application))

    async def _retire(self, entries: Iterable[VersionEntry]) -> None:
        """Take versions out of service: first no ingress routes to them, then their applications go."""
        retired = list(entries)
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
        entries = tuple(e for versions in self._entries.values() for e in versions.values())
        return await self._board.publish(entries, self._initialised)

    async def _publish_settled(self) -> None:
        """Publish, and return when every ingress routes by what was published."""
        number = await self._publish()
        await self._board.settled(number, await applications.running_replicas(*self._ingress))

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


def _load_failure(name: str, failed: Iterable[VersionEntry]) -> str:
    parts = "".join(f"version {e.version} is at {e.state.value} state: {e.reason};\n" for e in failed)
    return f"load failed for model '{name}': {parts}"


def status_table(table: RoutingTable) -> str:
    """Models, versions and states as tritonserver prints them at the end of its start."""
    rows = [("Model", "Version", "Status")]
    for entry in sorted(table.entries, key=lambda e: (e.name, e.version)):
        status = entry.state.value + (f": {entry.reason}" if entry.reason else "")
        rows.append((entry.name, "" if entry.version == NO_VERSION else str(entry.version), status))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
