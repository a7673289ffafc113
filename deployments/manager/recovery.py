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
    adopted: list[Description] = []
    for found in sorted(generations, key=lambda each: each.generation, reverse=True):
        base = found.base
        deployer.generations[base] = max(deployer.generations[base], found.generation)
        description = await _describe(found) if found.up and not adopted else None
        if description is not None:
            adopted.append(description)
        else:
            spawn(applications.delete(found.application))
    return adopted


async def _describe(found: ModelApplication) -> Description | None:
    """Return the description of an application; None when it does not answer or failed to load."""
    try:
        async with asyncio.timeout(_DESCRIBE_S):
            description = await applications.describe(found.model, found.application)
    except Exception as error:
        logger.warning("application '%s' does not answer and is replaced: %r", found.application, error)
        return None
    return None if description.error else description
