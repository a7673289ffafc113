"""The start of the manager: what it loads, and the tables that it logs in the end, as tritonserver does."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from app.core.errors import InferError
from app.core.observability.log import VERBATIM
from app.core.server_metadata import EXTENSIONS, VERSION
from app.core.system.tasks import Tasks
from app.routing.table import NO_VERSION, RoutingTable
from app.settings.settings import ServerSettings
from backends.registry.place import BackendPlace
from deployments.manager.loading import load_messages
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.polling import Poller, Polling
from deployments.model_store.layout import ModelEntry
from deployments.model_store.started import StartedModels
from deployments.residency.on_demand import OnDemand

logger = logging.getLogger(__name__)

_RATE_LIMITS: Final = {"off": "OFF", "execution_count": "EXEC_COUNT"}


class StartLoads:
    """Loads what is to be served, and in mode POLL follows the repositories from then on.

    Args:
        settings: the server's settings.
        lifecycle: loads models.
        catalog: reads the repositories.
        on_demand: lists the models that requests load.
        started: which models an earlier manager of this server has loaded at its start.
        key: the secret of the server's channels.
    """

    def __init__(
        self,
        settings: ServerSettings,
        lifecycle: Lifecycle,
        catalog: Catalog,
        on_demand: OnDemand,
        started: StartedModels,
        key: bytes,
    ) -> None:
        self._repository, self._settings = settings.repository, settings
        self._lifecycle, self._catalog, self._on_demand = lifecycle, catalog, on_demand
        self._started, self._key = started, key

    async def run(
        self,
        served: frozenset[str],
        lost: Collection[str],
        table: Callable[[], RoutingTable],
        tasks: Tasks,
        is_stopping: Callable[[], bool],
    ) -> None:
        """Load, then log the tables of the start.

        Args:
            served: the models that Serve ran already.
            lost: those of them whose replicas do not answer.
            table: returns the current routing table.
            tasks: what runs in the background.
            is_stopping: returns whether the manager stops, which ends polling.
        """
        on_disk = await self._scan()
        if on_disk is None:
            return
        seen = await asyncio.to_thread(self._catalog.fingerprints, on_disk)
        poller = Poller({**dict.fromkeys(self._lifecycle.entries, "served"), **seen})
        await self._load(on_disk, served, lost)
        for text in start_tables(self._settings, table()):
            logger.info("\n%s", text, extra=VERBATIM)
        if self._repository.control_mode == "poll" and self._repository.poll_interval_s:
            polling = Polling(self._lifecycle, self._catalog, self._on_demand, tasks, poller)
            tasks.start(polling.run(float(self._repository.poll_interval_s), is_stopping))

    async def _scan(self) -> Mapping[str, ModelEntry] | None:
        """Return the models of the repositories; None when they cannot be read and nothing is served."""
        try:
            return await asyncio.to_thread(self._catalog.scan)
        except InferError as error:
            if self._lifecycle.entries:
                raise  # the manager is started again, and what is served still is
            logger.error("%s", error.with_code())
            self._lifecycle.failed = True
            await self._lifecycle.publish()
            return None

    async def _load(
        self, on_disk: Mapping[str, ModelEntry], served: frozenset[str], lost: Collection[str]
    ) -> None:
        lifecycle = self._lifecycle
        startup = {*self._catalog.startup_models(on_disk)}
        started = None
        if self._repository.control_mode != "poll":
            started = await self._started.recover()
        if started is not None:  # what runs stays as it is: nobody has asked for changed files
            startup = (startup & started) - served
        wanted = self._on_demand.wanted(startup - self._overridden())
        names = sorted({*wanted, *lost, *self._unreachable()})
        progress = asyncio.create_task(load_messages.report_progress(names, lifecycle.entries))
        try:
            await asyncio.gather(*(lifecycle.load_quietly(name) for name in names))
        finally:
            progress.cancel()
        # Not those that clients load meanwhile, which may fail, or take longer.
        lifecycle.start_names = frozenset({*startup, *names})
        # An ingress that says "ready" speaks for all: others may share its port, or stand behind a balancer.
        await lifecycle.publish_and_wait()
        lifecycle.initialised = True
        await lifecycle.publish_and_wait()
        if started is None:
            await self._started.keep(lifecycle.start_names)

    def _overridden(self) -> set[str]:
        """Return models with the configuration or files of a load request, which outlive a restart."""
        with_files = {spec.identifier for spec in self._lifecycle.loaded.values() if spec.bundle}
        return {*with_files, *self._catalog.overrides.models}

    def _unreachable(self) -> set[str]:
        """Return adopted models whose channels have another key: they are from an earlier deployment."""
        return {spec.identifier for spec in self._lifecycle.loaded.values() if spec.key != self._key}


def start_tables(settings: ServerSettings, table: RoutingTable) -> Iterator[str]:
    """Yield the tables in tritonserver's order."""
    yield _drawn([("Repository Agent", "Path")])
    yield backend_table(settings, table)
    yield status_table(table)
    yield option_table(settings)


def backend_table(settings: ServerSettings, table: RoutingTable) -> str:
    """Return the backends of the models that are served, where they are, and their settings."""
    configs = [entry.model_config for entry in table.entries if entry.config]
    names = sorted({config.backend for config in configs} - {"", "ensemble"})
    directory = Path(settings.backends.directory) if settings.backends.directory else None
    rows = [("Backend", "Path", "Config")]
    for name in names:
        config = {"cmdline": _backend_config(settings, name)}
        rows.append((name, BackendPlace(name, directory).shown, json.dumps(config, separators=(",", ":"))))
    return _drawn(rows)


def _backend_config(settings: ServerSettings, name: str) -> Mapping[str, str]:
    given = settings.backends.config
    complete = not settings.repository.disable_auto_complete_config
    return {
        "auto-complete-config": str(complete).lower(),
        "backend-directory": settings.backends.directory,
        "default-max-batch-size": "4",
        **given.get("", {}),
        **given.get(name, {}),
    }


def status_table(table: RoutingTable) -> str:
    """Return models, versions and states.

    Of a reason the table has the first line, without the reasons of other models; Triton's has all. All of
    it is in the log, and at the end of the start (`nereid/console/messages.py`).
    """
    rows = [("Model", "Version", "Status")]
    for entry in sorted(table.entries, key=lambda e: (e.name, e.version)):
        absent = entry.version == NO_VERSION
        state = "Not loaded" if absent else entry.state.value
        first, *_ = entry.own_reason.splitlines() or [""]
        rows.append(
            (entry.name, "-" if absent else str(entry.version), state + (f": {first}" if first else ""))
        )
    return _drawn(rows)


def option_table(settings: ServerSettings) -> str:
    """Return the options; without those of memory pools and GPUs, which are accepted without effect."""
    return _drawn([("Option", "Value"), *_options(settings)])


def _options(settings: ServerSettings) -> Iterator[tuple[str, str]]:
    repository, limiter = settings.repository, settings.rate_limiter
    yield "server_id", settings.server.id
    yield "server_version", VERSION
    yield "server_extensions", " ".join(EXTENSIONS)
    for number, path in enumerate(repository.paths):
        yield f"model_repository_path[{number}]", path
    yield "model_control_mode", f"MODE_{repository.control_mode.upper()}"
    for number, name in enumerate(sorted(repository.startup_models)):
        yield f"startup_models_{number}", name
    yield "strict_model_config", str(int(repository.disable_auto_complete_config))
    yield "model_config_name", repository.config_name
    yield "rate_limit", _RATE_LIMITS[limiter.mode]
    resources = ((device, *each) for device, counts in limiter.resources.items() for each in counts.items())
    for number, (device, name, count) in enumerate(resources):
        text = f'{{"name":"{name}", "count":{count} "device":{device}}}'
        yield f"rate_limit_resource[{number}]", text
    yield "strict_readiness", str(int(repository.strict_readiness))
    yield "exit_timeout", str(settings.server.exit_timeout_s)
    yield "cache_enabled", str(int(bool(settings.cache)))


def _drawn(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the first of them a header, in a frame."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in rows]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])
