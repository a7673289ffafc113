"""The tables that tritonserver logs at the end of its start: agents, backends, models, options."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from app.core.server_metadata import EXTENSIONS, VERSION
from app.routing.table import NO_VERSION, RoutingTable
from app.settings.settings import ServerSettings
from backends.registry.place import BackendPlace

_RATE_LIMITS: Final = {"off": "OFF", "execution_count": "EXEC_COUNT"}


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
