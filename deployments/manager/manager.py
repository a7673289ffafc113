"""The repository manager: the one writer of what is served.

It scans the repositories, deploys and deletes the applications of model versions, and publishes routing
tables. The data plane goes on without it. Restarted, it takes what Serve still runs as its state.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping

import msgspec

from app.core.errors import InferError, invalid_arg, unavailable
from app.core.identifiers import name_of
from app.core.observability.log import VERBATIM, LogConfig, configure_logging
from app.ray_adapter.node import NODE_ADDRESS, gpus_by_node
from app.settings.settings import ServerSettings
from deployments.manager import applications, load_messages
from deployments.manager.catalog import Catalog, poll_failure
from deployments.manager.lifecycle import Lifecycle
from deployments.manager.model_locks import asked_by
from deployments.manager.polling import Poller
from deployments.manager.recovery import recover
from deployments.manager.routing_publisher import RoutingPublisher
from deployments.model_store.cache import private_root
from deployments.model_store.overrides import Overrides

logger = logging.getLogger(__name__)

poll_pause = asyncio.sleep


class RepositoryManager:
    """One replica; a plain class that `app/main.py` makes a deployment. Its `Lifecycle` changes models."""

    def __init__(self, settings: ServerSettings, key: bytes, ingress: tuple[str, str]) -> None:
        """`ingress` is the application and deployment name of those who watch."""
        configure_logging(LogConfig.of(settings))
        self._settings = settings
        self._key = key
        self._ingress = ingress
        self._catalog = Catalog(settings, key, ingress[0])
        self._overrides = Overrides(private_root() / "overrides", settings.model_override_bytes)
        self._board = RoutingPublisher(settings.model_namespacing)
        self._models = Lifecycle(settings, self._catalog, self._board, ingress, self._spawn)
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
        return load_messages.index_rows(self._models.effective, on_disk)

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
        with self._models.ensembles.requested(models):
            try:
                if files:
                    failure = await self._load_files(name, config, files)
                else:
                    failure = await self._load_each(models, config)
            finally:
                await self._release_overrides()
            await self._models.publish_settled()
        if failure:
            raise invalid_arg(failure)

    async def unload(self, name: str, unload_dependents: bool = False, asker: str = "") -> None:
        """Take a model out of service; unknown models are no error (as in Triton)."""
        self._require_explicit()
        await self._ensure_recovered()
        models = [model for model in self._models.entries if name_of(model) == name] or [name]
        if not asker:  # what serves or loads could be what such a load waits for
            await self._models.ensembles.not_needed(models)
        with asked_by(asker):
            await asyncio.gather(*(self._models.unload(model, unload_dependents) for model in models))
        await self._release_overrides()

    async def override_listing(self, digest: str) -> list[tuple[str, int]]:
        """Paths and sizes of the files of a load request, for a replica on another node."""
        return await asyncio.to_thread(self._overrides.listing, digest)

    async def override_chunk(self, digest: str, path: str, offset: int) -> bytes:
        """Some bytes of such a file."""
        return await asyncio.to_thread(self._overrides.read, digest, path, offset)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings, see `RoutingPublisher.configure`; returns when every ingress goes by them."""
        await self._ensure_recovered()
        configure_logging(self._board.configure(change, current).log)
        await self._models.publish_settled()

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

    async def _start_up(self) -> None:
        await self._recover()
        # A restart of the manager does not make the server unready.
        self._models.initialised = bool(self._models.entries)
        await self._models.publish()
        self._recovered.set()
        self._catalog.gpus = _gpu_ordinals(self._settings.channel_address)
        await self._release_overrides()
        on_disk = await asyncio.to_thread(self._catalog.scan)
        seen = await asyncio.to_thread(self._catalog.fingerprints, on_disk)
        poller = Poller({**dict.fromkeys(self._models.entries, "served"), **seen})
        wanted = set(self._catalog.startup_models(on_disk)) - self._overridden()
        names = sorted({*wanted, *self._out_of_reach()})
        progress = asyncio.create_task(load_messages.report_progress(names, self._models.entries))
        try:
            await asyncio.gather(*(self._models.load_quietly(name) for name in names))
        finally:
            progress.cancel()
        self._models.initialised = True
        await self._models.publish_settled()
        logger.info("\n%s", load_messages.status_table(self._board.table), extra=VERBATIM)
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
            await self._models.load_quietly(name)
        else:
            await self._models.unload(name)

    def _overridden(self) -> set[str]:
        """Models that a load request gave configuration or files: a restart does not take those back."""
        return {spec.identifier for spec in self._models.loaded.values() if spec.overridden}

    def _out_of_reach(self) -> set[str]:
        """Adopted models whose channels want another key: those of before a new deployment of the server."""
        return {spec.identifier for spec in self._models.loaded.values() if spec.key != self._key}

    async def _recover(self) -> None:
        """Take what Serve runs as what is served."""
        for description in await recover(self._models.deployer, self._spawn):
            if description.spec.bundle:
                await asyncio.to_thread(self._overrides.adopt, description.spec.bundle)
            self._models.serve(description)
        if self._models.entries:
            routed = await applications.routed_ensembles(*self._ingress)
            on_disk = await asyncio.to_thread(self._catalog.scan)
            for entry in await asyncio.to_thread(self._models.ensembles.adopted, on_disk.values(), routed):
                self._models.set(entry)

    async def _load_files(self, name: str, config: str | None, files: Mapping[str, bytes]) -> str:
        try:
            if not config:
                raise invalid_arg("Load parameter 'config' must be specified for model file override")
            bundle = await asyncio.to_thread(self._overrides.open, name, files)
        except InferError as error:
            raise poll_failure(name, error) from error
        try:
            return await self._models.load(name, config, bundle)
        finally:
            self._overrides.close(bundle)

    async def _load_each(self, models: Iterable[str], config: str | None) -> str:
        """Load the models of one name, one in each namespace; what fails does not keep the others from it.

        Returns:
            See `Lifecycle.load`.
        """
        outcomes = await asyncio.gather(
            *(self._models.load(m, config) for m in models), return_exceptions=True
        )
        failures = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            failures.append(outcome)
        return "\n".join(filter(None, failures))

    async def _release_overrides(self) -> None:
        served = {spec.bundle for spec in self._models.loaded.values()}
        await asyncio.to_thread(self._overrides.retain, served)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _gpu_ordinals(channel_address: str) -> tuple[int, ...]:
    """Return the CUDA ordinals of the node with the most GPUs; warn of nodes that channels cannot reach."""
    nodes = gpus_by_node()
    if len(nodes) > 1 and channel_address != NODE_ADDRESS:
        logger.warning(
            "the cluster has %d nodes, but replicas listen on %s only: models on other nodes than their "
            "ingress are out of reach; set channel_address to 'node'",
            len(nodes),
            channel_address,
        )
    return tuple(range(max(nodes, default=0)))
