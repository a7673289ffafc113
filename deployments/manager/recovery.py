"""Recovers the state of a restarted manager from the applications that Serve runs."""

import asyncio
import logging
from collections import defaultdict
from itertools import chain

from deployments.manager import applications
from deployments.manager.applications import ModelApplication
from deployments.manager.deployer import Deployer, Spawn
from deployments.spec import Description

logger = logging.getLogger(__name__)

_DESCRIBE_S = 30.0
"""Time for an application to answer, which Serve may be restarting itself."""


async def recover(deployer: Deployer, spawn: Spawn) -> list[Description]:
    """Return the newest serving generation of each model version that Serve runs, and delete the others."""
    found: dict[str, list[ModelApplication]] = defaultdict(list)
    for application in await applications.listed():
        found[application.base].append(application)
    adopted = await asyncio.gather(*(_adopt(versions, deployer, spawn) for versions in found.values()))
    return list(chain.from_iterable(adopted))


async def _adopt(generations: list[ModelApplication], deployer: Deployer, spawn: Spawn) -> list[Description]:
    """Adopt at most one generation of a model version."""
    deployer.applications.update(found.application for found in generations)
    described = await asyncio.gather(*(_describe(found) for found in generations if found.up))
    serving = [description for description in described if description is not None]
    adopted = sorted(serving, key=lambda each: each.spec.loaded_at)[-1:]
    kept = {description.spec.application for description in adopted}
    for found in generations:
        if found.application not in kept:
            spawn(deployer.delete(found.application))
    return adopted


async def _describe(found: ModelApplication) -> Description | None:
    """Return the description of an application; None when it does not answer or failed to load."""
    try:
        async with asyncio.timeout(_DESCRIBE_S):
            if found.empty:  # only a replica can describe it; it ends again when nothing asks for it
                await applications.wake(found.application, found.model)
            description = await applications.describe(found.model, found.application)
    except Exception as error:
        logger.warning("application '%s' does not answer and is replaced: %r", found.application, error)
        return None
    return None if description.error else description
