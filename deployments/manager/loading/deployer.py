"""Deploys model versions, and changes the instances of deployed ones."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Final, Protocol

import msgspec

from app.core.errors import InferError
from app.core.identifiers import application_name, base_name
from app.core.system.tasks import Tasks
from app.settings.settings import ServerSettings
from deployments.manager.loading.candidate import Candidate
from deployments.manager.loading.model_locks import ModelLocks
from deployments.manager.publishing.routing_publisher import RoutingPublisher
from deployments.model_store.fingerprint import version_bytes
from deployments.spec import Description, ModelSpec

logger = logging.getLogger(__name__)

ABANDON_S: Final = 2.0
"""Time for a load to end when its model is to be unloaded, and nobody has requested either."""
_ABANDONED: Final = "Unavailable: unloaded while it was loading"
_TOO_LONG: Final = "Internal: not loaded within"

Room = Callable[[str, int, int], AbstractAsyncContextManager[None]]
"""Holds room for a load, see `deployments.residency.residency.Residency.room`."""


class Applications(Protocol):
    """Runs model versions: in Serve (`deployments.manager.serve.applications`), or in this process."""

    async def deploy(self, spec: ModelSpec) -> Description:
        """Start a version and wait for the outcome of its load; raise `InferError` if it cannot start."""

    async def update(self, spec: ModelSpec, previous: ModelSpec) -> Description:
        """Change the instances of a running version; raise `InferError` if everything is as before."""

    async def delete(self, application: str, kill: bool = False) -> bool:
        """End a version after its requests, with `kill` at once; return whether it is gone."""

    async def running_replicas(self, application: str, deployment: str) -> int:
        """Return the number of running replicas of a deployment, such as the ingress."""

    async def stops(self) -> bool:
        """Return whether the server stops, which ends the versions too."""


async def running_replicas(running: Applications, application: str, deployment: str) -> int:
    """Return the number of running replicas of a deployment; 0 where Serve does not answer."""
    try:
        return await running.running_replicas(application, deployment)
    except Exception as error:  # without Serve's controller, the ingresses known so far must do
        logger.warning("cannot count the ingress replicas: %r", error)
        return 0


class Deployer:
    """Deploys and updates model versions. A failure is returned as a `Description` with an error, not raised.

    Attributes:
        room: holds room in memory for a load.
        applications: the names that are in use. A name is used again once its application is gone, because
            Ray keeps something of every name in several processes for ever.
    """

    def __init__(
        self,
        settings: ServerSettings,
        publisher: RoutingPublisher,
        locks: ModelLocks,
        tasks: Tasks,
        running: Applications,
    ) -> None:
        """`running` runs the versions."""
        self.running = running
        self._settings = settings
        self._publisher = publisher
        self._locks = locks
        self._tasks = tasks
        self.room: Room = _room_enough
        self.applications: set[str] = set()
        self._waiting: dict[asyncio.Future[Description], str] = {}
        """The models whose replicas are being waited for."""

    @asynccontextmanager
    async def abandoning(self, models: Collection[str], after_s: float) -> AsyncIterator[None]:
        """Give up loads of models that are to be unloaded, unless they end in time; meanwhile the block runs.

        Their processes are killed: a load may never return. Loads that are requested later are not given up.
        """
        task = asyncio.create_task(self._abandon(models, after_s))
        try:
            yield
        finally:
            task.cancel()

    async def _abandon(self, models: Collection[str], after_s: float) -> None:
        awaited = {operation for model in models for operation in self._locks.operations(model)}
        while True:  # a load that waited for another one may never return either
            await asyncio.sleep(after_s)
            for waiting, model in [*self._waiting.items()]:
                if model in models and awaited.intersection(self._locks.operations(model)[:1]):
                    waiting.cancel()

    async def deploy(self, candidate: Candidate, version: int, replicas: int = 0) -> Description:
        """Deploy a version, with `--model-load-retry-count` retries; delete each failed application.

        Args:
            candidate: the model.
            version: its version.
            replicas: those that serve the model already, if it is scaled.
        """
        fault = await asyncio.to_thread(_fault, candidate, version)
        if not fault:
            nbytes = await asyncio.to_thread(version_bytes, candidate.entry, version)
            try:
                async with self.room(candidate.name, version, nbytes), self._locks.load_slot(candidate.name):
                    return await self._deploy(candidate, version, replicas)
            except InferError as error:
                fault = error.with_code()
        logger.error("failed to load '%s' version %d: %s", candidate.name, version, fault)
        return Description(self._next_spec(candidate, version), error=fault)

    async def _deploy(self, candidate: Candidate, version: int, replicas: int) -> Description:
        for _ in range(self._settings.repository.load_retries + 1):
            logger.info("loading: %s:%d", candidate.name, version)
            description = await self._deploy_once(candidate, version, replicas)
            if not description.error:
                break
            logger.error("failed to load '%s' version %d: %s", candidate.name, version, description.error)
            hangs = description.error.startswith((_ABANDONED, _TOO_LONG))
            self._tasks.start(self.delete(description.spec.application, kill=hangs))
            if description.error == _ABANDONED:
                break
        return description

    async def delete(self, application: str, kill: bool = False) -> None:
        """Delete an application after its replicas have drained, or with `kill` at once."""
        if await self.running.delete(application, kill):
            self.applications.discard(application)

    async def update(self, candidate: Candidate, loaded: ModelSpec, replicas: int = 0) -> Description:
        """Change the instances of a served version to those of the candidate's configuration."""
        loaded = msgspec.structs.replace(loaded, replicas=replicas)
        spec = msgspec.structs.replace(candidate.configured(loaded), revision=loaded.revision + 1)
        async with self._locks.load_slot(candidate.name):
            logger.info("updating instances: %s:%d", spec.name, spec.version)
            return await self._outcome(spec, self.running.update(spec, loaded))

    def _next_spec(self, candidate: Candidate, version: int) -> ModelSpec:
        """Return the spec of a version with a name that is free, without its fingerprint."""
        base = base_name(candidate.name, version)
        names = (application_name(base, generation) for generation in count(1))
        application = next(name for name in names if name not in self.applications)
        return msgspec.structs.replace(candidate.template, version=version, application=application)

    async def _deploy_once(self, candidate: Candidate, version: int, replicas: int) -> Description:
        spec = self._next_spec(candidate, version)
        application = spec.application
        self.applications.add(application)

        async def deployed() -> Description:
            spec = await asyncio.to_thread(candidate.spec, version, application)
            log = self._publisher.log or spec.log
            given = msgspec.structs.replace(spec, log=log, replicas=replicas, loaded_at=time.time())
            return await self.running.deploy(given)

        return await self._outcome(spec, deployed())

    async def _outcome(self, spec: ModelSpec, work: Awaitable[Description]) -> Description:
        limit = self._settings.model_store.load_timeout_s
        waiting = asyncio.ensure_future(work)
        self._waiting[waiting] = spec.identifier
        try:
            async with asyncio.timeout(limit):
                return await waiting
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return Description(spec, error=_ABANDONED)
        except TimeoutError:
            return Description(spec, error=f"{_TOO_LONG} {limit} s (model_load_timeout_secs)")
        except Exception as error:
            return Description.of_failure(spec, error)
        finally:
            del self._waiting[waiting]


@asynccontextmanager
async def _room_enough(name: str, version: int, file_bytes: int) -> AsyncIterator[None]:
    yield


def _fault(candidate: Candidate, version: int) -> str:
    """Return why no replica could load a version, in the words of its error; "" when nothing is known."""
    try:
        candidate.check(version)
    except InferError as error:
        return error.with_code()
    return ""
