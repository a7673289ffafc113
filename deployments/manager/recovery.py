"""Recovers the state of a restarted manager from the applications that Serve runs and the cluster's store."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from app.core.errors import InferError
from app.core.identifiers import base_name, name_of
from app.core.rollout.spec import RolloutSpec
from app.core.rollout.split import Split
from app.core.system.tasks import Tasks
from deployments.manager.loading.catalog import Catalog
from deployments.manager.loading.deployer import Deployer
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.serve import applications
from deployments.manager.serve.applications import ModelApplication
from deployments.model_store.layout import ModelEntry
from deployments.model_store.overrides import Overrides
from deployments.rollout.rollouts import Routed
from deployments.spec import Description

logger = logging.getLogger(__name__)

_DESCRIBE_S = 30.0
"""Time for an application to answer, which Serve may be restarting itself."""
_ANSWER_S = 12.0
"""Time for a replica, before another is asked: some may have gone with their node. A busy one takes 10 s."""
_PAUSE_S = 0.5


class _Found(NamedTuple):
    """The applications of a version: the one in service, and whether another should have answered."""

    adopted: Description | None
    silent: bool


async def recover(
    lifecycle: Lifecycle, catalog: Catalog, files: Overrides, ingress: tuple[str, str], tasks: Tasks
) -> set[str]:
    """Adopt the model applications that Serve runs, and the ensembles and rollouts that ingresses route by.

    Args:
        lifecycle: gets the versions in service.
        catalog: the repositories, and the configurations of load requests.
        files: the files of load requests.
        ingress: the application and deployment of the ingresses.
        tasks: what runs in the background.

    Returns:
        The models that Serve runs but whose replicas do not answer: they are to be loaded again.
    """
    await catalog.overrides.recover()
    await catalog.registered.recover()
    found = await _applications(lifecycle.deployer, tasks)
    for description in (each.adopted for each in found.values()):
        if description is None:
            continue
        if description.spec.bundle:
            await asyncio.to_thread(files.adopt, description.spec.bundle)
        await catalog.overrides.keep(description.spec)
        lifecycle.serve(description)
    silent = [base for base, each in found.items() if each.silent]
    lost, rollouts = set[str](), list[Routed]()
    if lifecycle.entries or silent:
        on_disk = await asyncio.to_thread(_on_disk, catalog)
        lost = _identifiers(on_disk, silent)
        lifecycle.policies |= await asyncio.to_thread(catalog.policies, on_disk.values())
        routed = await applications.routed_ensembles(*ingress)
        for entry in await asyncio.to_thread(lifecycle.ensembles.adopted, on_disk.values(), routed):
            lifecycle.set_entry(entry)
        splits = await applications.routed_splits(*ingress)
        rollouts = [await asyncio.to_thread(_routed, catalog, split) for split in splits]
    await catalog.overrides.retain({*lifecycle.entries, *lost})
    await catalog.registered.retain({name_of(each) for each in (*lifecycle.entries, *lost)})
    await lifecycle.rollouts.recover(lifecycle.ready, rollouts)
    return lost


def _routed(catalog: Catalog, split: Split) -> Routed:
    """Return a rollout by which an ingress routes, with what the repository says of it."""
    try:
        candidate = catalog.candidate(split.name, None)
        fingerprint = candidate.fingerprint(split.candidate)
    except InferError:
        return Routed(split, RolloutSpec(), "")
    return Routed(split, candidate.rollout or RolloutSpec(), fingerprint)


def _on_disk(catalog: Catalog) -> dict[str, ModelEntry]:
    """Return the models that there are, by identifier."""
    return catalog.scan() | {entry.identifier: entry for entry in catalog.served_elsewhere()}


def _identifiers(on_disk: Mapping[str, ModelEntry], bases: Collection[str]) -> set[str]:
    """Return the models whose applications have these base names."""
    return {
        name
        for name, entry in on_disk.items()
        if any(base_name(name, version) in bases for version in entry.versions)
    }


async def _applications(deployer: Deployer, tasks: Tasks) -> dict[str, _Found]:
    """Find the newest serving generation of each version that Serve runs, by base name; delete the others."""
    found: dict[str, list[ModelApplication]] = defaultdict(list)
    for application in await applications.listed():
        found[application.base].append(application)
    adopted = await asyncio.gather(*(_adopt(versions, deployer, tasks) for versions in found.values()))
    return dict(zip(found, adopted, strict=True))


async def _adopt(generations: Iterable[ModelApplication], deployer: Deployer, tasks: Tasks) -> _Found:
    """Adopt at most one generation of a model version."""
    up = [found for found in generations if found.up]
    deployer.applications.update(found.application for found in generations)
    described = await asyncio.gather(*map(_describe, up))
    serving = [each for each in described if each is not None and not each.error]
    adopted = max(serving, key=lambda each: each.spec.loaded_at, default=None)
    for found in generations:
        if adopted is None or found.application != adopted.spec.application:
            tasks.start(deployer.delete(found.application))
    return _Found(adopted, adopted is None and None in described)


async def _describe(found: ModelApplication) -> Description | None:
    """Return the description of an application, which may say that it failed; None without an answer."""
    failure: Exception = TimeoutError()
    with suppress(TimeoutError):
        async with asyncio.timeout(_DESCRIBE_S):
            if found.empty:  # only a replica can describe it; it ends again when nothing asks for it
                await applications.wake(found.application, found.deployment)
            while True:
                try:
                    async with asyncio.timeout(_ANSWER_S):
                        return await applications.describe(found.deployment, found.application)
                except Exception as error:
                    failure = error
                await asyncio.sleep(_PAUSE_S)
    logger.warning("application '%s' does not answer and is replaced: %r", found.application, failure)
    return None
