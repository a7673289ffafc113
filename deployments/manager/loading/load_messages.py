"""Entries of versions that were not loaded, error texts and log messages of loads, with Triton's texts."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from app.core.errors import ErrorCode, InferError
from app.core.hints import hinted
from app.routing.table import NO_VERSION, UNLOADED, ModelState, VersionEntry
from deployments.manager.loading.catalog import PollFailure
from deployments.spec import Description

logger = logging.getLogger(__name__)

_PROGRESS_S: Final = 5.0
CAUSES: Final = {"explicit": "a request", "poll": "files that changed"}
"""What loads models after the start, by the control mode, as their history says it."""


def not_explicit(mode: str) -> InferError:
    """Return the error for a load or unload on request in another mode, in Triton's words for polling."""
    text = "explicit model load / unload is not allowed if polling is enabled"
    hint = f"the server runs with --model-control-mode={mode}; it loads on request with =explicit"
    return InferError(ErrorCode.UNAVAILABLE, hinted(text, hint))


def failed_entry(failed: Description, served: VersionEntry | None) -> VersionEntry:
    """Return the entry of a version that failed; `served` is that of the one in service."""
    spec = failed.spec
    updated = served is not None and served.application == spec.application
    state = ModelState.READY if updated else ModelState.UNAVAILABLE
    return VersionEntry(spec.identifier, spec.version, state, failed.error)


def scaled_replicas(entries: Iterable[VersionEntry]) -> int:
    """Return how many replicas the largest ready version of a scaled model has; 0 where there are none."""
    scales = (entry.scale for entry in entries if entry.state is ModelState.READY)
    return max((scale.wanted for scale in scales if scale is not None), default=0)


def unloaded_entry(entry: VersionEntry) -> VersionEntry:
    """Return the entry of a version that was unloaded."""
    return VersionEntry(entry.name, entry.version, ModelState.UNAVAILABLE, UNLOADED)


def unreadable_entry(name: str, error: Exception) -> VersionEntry:
    """Return the entry of a model without versions, whose load could not begin.

    As in Triton, one that cannot be read does not make the server unready, and one without a version does.
    """
    state = ModelState.UNKNOWN if isinstance(error, PollFailure) else ModelState.UNAVAILABLE
    return VersionEntry(name, NO_VERSION, state, _reason(error))


def log_success(name: str, loaded: Collection[int], updated: Collection[int] = ()) -> None:
    """Log once, as Triton does, that a model was loaded: with the versions that are new, none perhaps."""
    if updated:
        logger.info("successfully updated the instances of '%s'%s", name, _versions(updated))
    if loaded or not updated:
        logger.info("successfully loaded '%s'%s", name, _versions(loaded))


def _versions(versions: Collection[int]) -> str:
    numbers = ", ".join(map(str, sorted(versions)))
    return f" version{'s' * (len(versions) > 1)} {numbers}" if versions else ""


def log_failure(name: str, error: Exception) -> None:
    """Log why a load that no client requested failed; with a traceback if that is not known."""
    if isinstance(error, PollFailure):
        return  # is logged
    known = isinstance(error, InferError)
    logger.error("failed to load '%s': %s", name, _reason(error), exc_info=None if known else error)


def _reason(error: Exception) -> str:
    return error.with_code() if isinstance(error, InferError) else f"Internal: {error!r}"


async def report_progress(names: Sequence[str], entries: Mapping[str, Mapping[int, VersionEntry]]) -> None:
    """Log every few seconds which of these models are still loading, until cancelled."""
    while True:
        await asyncio.sleep(_PROGRESS_S)
        waiting = [
            name
            for name in names
            if all(entry.state is ModelState.LOADING for entry in entries.get(name, {}).values())
        ]
        done = len(names) - len(waiting)
        logger.info("loading models: %d of %d done, waiting for %s", done, len(names), ", ".join(waiting))


def load_failure(name: str, failed: Iterable[VersionEntry]) -> str:
    """Return why the load of a model failed, version by version; "" when no version did."""
    text = "".join(f"version {e.version} is at {e.state.value} state: {e.reason};" for e in failed)
    return f"load failed for model '{name}': {text}\n" if text else ""


def unavailable(name: str, entries: Iterable[VersionEntry]) -> list[VersionEntry]:
    """Return the versions of a model that could not be loaded."""
    unavailable = (entry for entry in entries if entry.state is ModelState.UNAVAILABLE)
    return [entry for entry in unavailable if entry.name == name and not entry.unloaded_by_request]
