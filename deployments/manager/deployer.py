"""Deploys model versions, and changes the instances of deployed ones."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count

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
"""Runs a coroutine in the background."""


class Deployer:
    """Deploys and updates model versions. A failure is returned as a `Description` with an error, not raised.

    Attributes:
        applications: the names that are in use. A name is used again once its application is gone, because
            Ray keeps something of every name in several processes for ever.
    """

    def __init__(
        self, settings: ServerSettings, publisher: RoutingPublisher, locks: ModelLocks, spawn: Spawn
    ) -> None:
        self._settings = settings
        self._publisher = publisher
        self._locks = locks
        self._spawn = spawn
        self.applications: set[str] = set()

    async def deploy(self, candidate: Candidate, version: int) -> Description:
        """Deploy a version, with `--model-load-retry-count` retries; delete each failed application."""
        async with self._locks.load_slot(candidate.name):
            if fault := await asyncio.to_thread(_fault, candidate, version):
                logger.error("failed to load '%s' version %d: %s", candidate.name, version, fault)
                return Description(self._next_spec(candidate, version), error=fault)
            for _ in range(self._settings.repository.load_retries + 1):
                logger.info("loading: %s:%d", candidate.name, version)
                description = await self._deploy_once(candidate, version)
                if not description.error:
                    break
                logger.error("failed to load '%s' version %d: %s", candidate.name, version, description.error)
                self._spawn(self.delete(description.spec.application))
            return description

    async def delete(self, application: str) -> None:
        """Delete an application after its replicas have drained."""
        if await applications.delete(application):
            self.applications.discard(application)

    async def update(self, candidate: Candidate, loaded: ModelSpec) -> Description:
        """Change the instances of a served version to those of the candidate's configuration."""
        spec = msgspec.structs.replace(candidate.configured(loaded), revision=loaded.revision + 1)
        async with self._locks.load_slot(candidate.name):
            logger.info("updating instances: %s:%d", spec.name, spec.version)
            return await self._outcome(spec, applications.update(spec, loaded))

    def _next_spec(self, candidate: Candidate, version: int) -> ModelSpec:
        """Return the spec of a version with a name that is free, without its fingerprint."""
        base = applications.base_name(candidate.name, version)
        names = (applications.application_name(base, generation) for generation in count(1))
        application = next(name for name in names if name not in self.applications)
        return msgspec.structs.replace(candidate.template, version=version, application=application)

    async def _deploy_once(self, candidate: Candidate, version: int) -> Description:
        spec = self._next_spec(candidate, version)
        application = spec.application
        self.applications.add(application)

        async def deployed() -> Description:
            spec = await asyncio.to_thread(candidate.spec, version, application)
            log = self._publisher.log or spec.log
            return await applications.deploy(msgspec.structs.replace(spec, log=log, loaded_at=time.time()))

        return await self._outcome(spec, deployed())

    async def _outcome(self, spec: ModelSpec, work: Awaitable[Description]) -> Description:
        limit = self._settings.model_store.load_timeout_s
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


def _fault(candidate: Candidate, version: int) -> str:
    """Return why no replica could load a version, in the words of its error; "" when nothing is known."""
    try:
        candidate.check(version)
    except InferError as error:
        return error.with_code()
    return ""
