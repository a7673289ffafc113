"""Loads and unloads on request: of a client of the server, of a model, or of the program around it."""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from app.core.errors import InferError, invalid_arg
from app.core.identifiers import name_of
from app.routing.manager_client import LoadRequest
from deployments.manager.loading.catalog import Catalog, PollFailure, poll_failure
from deployments.manager.loading.lifecycle import Lifecycle
from deployments.manager.loading.model_locks import LONG_LOAD_S, requested_by
from deployments.manager.publishing.index import index_rows
from deployments.model_store.config_overrides import ConfigOverrides
from deployments.model_store.overrides import Overrides

logger = logging.getLogger(__name__)


class Requests:
    """Operations on models by the names that clients use.

    Args:
        lifecycle: loads and unloads.
        catalog: reads the repositories.
        configs: the configurations of load requests.
        files: the files of load requests.
    """

    def __init__(
        self, lifecycle: Lifecycle, catalog: Catalog, configs: ConfigOverrides, files: Overrides
    ) -> None:
        self._lifecycle = lifecycle
        self._catalog = catalog
        self._configs = configs
        self._files = files

    async def index(self) -> list[tuple[str, str, str, str]]:
        """Return name, version, state and reason of every model version, and names of models never loaded."""
        on_disk = await asyncio.to_thread(self._catalog.scan)
        rejected = self._lifecycle.rollouts.rejected()
        return index_rows(self._lifecycle.effective, on_disk, rejected)

    async def load(self, asked: LoadRequest) -> None:
        """Load or reload a model; return when every ingress routes to it.

        Raises:
            InferError: the load failed (Triton's texts); versions that were served still are.
        """
        with requested_by(asked.requester, asked.who):
            if asked.directory:
                await self._register(asked.name, asked.directory)
            else:
                await self._load(asked.name, asked.config, asked.files)

    async def _load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        models = [name] if files else await asyncio.to_thread(self._catalog.identifiers, name)
        if config and not files:
            self._configs.check(models, config)
        with self._lifecycle.ensembles.requested(models):
            try:
                if files:
                    failure = await self._load_files(name, config, files)
                else:
                    failure = await self._load_each(models, config)
            except PollFailure:
                raise  # is logged
            except InferError as error:
                logger.error("%s", error.message.rstrip())
                raise
            finally:
                await self.release_files()
            await self._lifecycle.publish_and_wait()
        if failure:
            raise invalid_arg(failure)

    async def _register(self, name: str, directory: str) -> None:
        registered = self._catalog.registered
        await asyncio.to_thread(registered.add, name, directory)
        try:
            await self._load(name, None, {})
        except BaseException:
            registered.discard(name)
            raise
        await registered.keep(name)

    def registered(self) -> dict[str, str]:
        """Return the directories of models that were loaded from outside the repositories, by name."""
        return self._catalog.registered.loaded

    async def unload(
        self, name: str, unload_dependents: bool = False, requester: str = "", who: str = ""
    ) -> None:
        """Unload a model, in every namespace that has it; see `RepositoryManager.unload`."""
        with requested_by(requester, who):
            await self._unload(name, unload_dependents, requester)

    async def _unload(self, name: str, unload_dependents: bool, requester: str) -> None:
        lifecycle = self._lifecycle
        models = [model for model in lifecycle.entries if name_of(model) == name] or [name]
        unloads = (lifecycle.unload(model, unload_dependents) for model in models)
        if requester:  # a load may wait for the request of a model, which must not wait for that load
            await asyncio.gather(*unloads)
        else:
            # As in Triton, a load in progress succeeds, and the unload waits for it.
            async with lifecycle.deployer.abandoning(models, LONG_LOAD_S):
                await lifecycle.ensembles.wait_not_needed(models)
                await asyncio.gather(*unloads)
        await self._catalog.registered.forget(name)
        await self.release_files()

    async def release_files(self) -> None:
        """Remove the files of load requests that no served model has."""
        served = {spec.bundle for spec in self._lifecycle.loaded.values()}
        await asyncio.to_thread(self._files.retain, served)

    async def _load_files(self, name: str, config: str | None, files: Mapping[str, bytes]) -> str:
        try:
            if config is None:
                raise invalid_arg("Load parameter 'config' must be specified for model file override")
            bundle = await asyncio.to_thread(self._files.open, name, files)
        except InferError as error:
            raise poll_failure(name, error) from error
        try:
            return await self._lifecycle.load(name, config, bundle)
        finally:
            self._files.close(bundle)

    async def _load_each(self, models: Iterable[str], config: str | None) -> str:
        """Load the models of one name, one in each namespace, all of them even if one fails.

        Returns:
            See `Lifecycle.load`.
        """
        outcomes = await asyncio.gather(
            *(self._lifecycle.load(m, config) for m in models), return_exceptions=True
        )
        failures = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            failures.append(outcome)
        return "\n".join(filter(None, failures))
