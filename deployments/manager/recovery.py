"""What a restarted manager finds."""

import asyncio
import logging
from collections import defaultdict
from itertools import chain

from deployments.manager import applications
from deployments.manager.applications import Found
from deployments.manager.deployer import Deployer, Spawn
from deployments.spec import Description

logger = logging.getLogger(__name__)

_ADOPT_S = 30.0
"""How long a restarted manager waits for an application that Serve is bringing back itself."""


async def recover(deployer: Deployer, spawn: Spawn) -> list[Description]:
    """The newest generation that serves of each model version that Serve runs; the others are deleted."""
    found: dict[str, list[Found]] = defaultdict(list)
    for application in await applications.listed():
        found[application.base].append(application)
    adopted = await asyncio.gather(*(_adopt(versions, deployer, spawn) for versions in found.values()))
    return list(chain.from_iterable(adopted))


async def _adopt(generations: list[Found], deployer: Deployer, spawn: Spawn) -> list[Description]:
    """One or none of the generations of a model version."""
    adopted: list[Description] = []
    for found in sorted(generations, key=lambda each: each.generation, reverse=True):
        base = found.base
        deployer.generations[base] = max(deployer.generations[base], found.generation)
        description = await _description(found) if found.up and not adopted else None
        if description is not None:
            adopted.append(description)
        else:
            spawn(applications.delete(found.application))
    return adopted


async def _description(found: Found) -> Description | None:
    """What an application serves; None when it does not."""
    try:
        async with asyncio.timeout(_ADOPT_S):
            description = await applications.describe(found.model, found.application)
    except Exception as error:
        logger.warning("application '%s' does not answer and is replaced: %r", found.application, error)
        return None
    return None if description.error else description
