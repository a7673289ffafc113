"""Deploys model versions, and changes the instances of those that are deployed."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine

import msgspec

from app.core.errors import InferError
from app.settings.settings import ServerSettings
from deployments.manager import applications
from deployments.manager.catalog import Candidate
from deployments.manager.model_locks import ModelLocks
from deployments.manager.routing_publisher import RoutingPublisher
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

Spawn = Callable[[Coroutine[None, None, None]], None]
"""Runs something that nobody waits for."""


class Deployer:
    """Failures are outcomes, not exceptions: a `Description` with an error.

    `generations` are the highest in use of each model version, 0 for none.
    """

    def __init__(
        self, settings: ServerSettings, board: RoutingPublisher, turns: ModelLocks, spawn: Spawn
    ) -> None:
        """`board` knows the log settings of now."""
        self._settings = settings
        self._board = board
        self._turns = turns
        self._spawn = spawn
        self.generations: dict[str, int] = defaultdict(int)

    async def deploy(self, candidate: Candidate, version: int) -> Description:
        """Deploy a version, again as often as `model_load_retry_count` says; what fails is deleted."""
        async with self._turns.loading(candidate.name):
            for _ in range(self._settings.model_load_retry_count + 1):
                logger.info("loading: %s:%d", candidate.name, version)
                description = await self._deploy_once(candidate, version)
                if not description.error:
                    break
                logger.error("failed to load '%s' version %d: %s", candidate.name, version, description.error)
                self._spawn(applications.delete(description.spec.application))
            return description

    async def update(self, candidate: Candidate, loaded: ModelSpec) -> Description:
        """Change the instances of a version that serves to those of the candidate's configuration."""
        spec = msgspec.structs.replace(
            loaded,
            config=candidate.template.config,
            overridden=candidate.template.overridden,
            revision=loaded.revision + 1,
        )
        async with self._turns.loading(candidate.name):
            logger.info("updating instances: %s:%d", spec.name, spec.version)
            return await self._outcome(spec, applications.update(spec, loaded))

    async def _deploy_once(self, candidate: Candidate, version: int) -> Description:
        base = applications.base_name(candidate.name, version)
        self.generations[base] += 1
        application = applications.application_name(base, self.generations[base])
        spec = msgspec.structs.replace(candidate.template, version=version, application=application)

        async def deployed() -> Description:
            spec = await asyncio.to_thread(candidate.spec, version, application)
            return await applications.deploy(msgspec.structs.replace(spec, log=self._board.log or spec.log))

        return await self._outcome(spec, deployed())

    async def _outcome(self, spec: ModelSpec, work: Awaitable[Description]) -> Description:
        limit = self._settings.model_load_timeout_secs
        try:
            async with asyncio.timeout(limit):
                return await work
        except TimeoutError:
            return Description(spec, error=f"Internal: not loaded within {limit} s (model_load_timeout_secs)")
        except InferError as error:
            return Description(spec, error=error.with_code())
        except Exception as error:
            logger.exception("deploying application '%s'", spec.application)
            return Description(spec, error=f"Internal: {type(error).__name__}: {error}")
