"""Configurations of load requests, which outlive the manager in the cluster's store."""

import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from app.core.errors import unavailable
from deployments.spec import ModelSpec
from deployments.stored import KeptValues, StoredValues

logger = logging.getLogger(__name__)

PREFIX: Final = "config/"
"""Begins the keys of the stored configurations."""


class ConfigOverride(msgspec.Struct, frozen=True):
    """A configuration as JSON, and the digest that the model's files had at its load."""

    config: str
    files: str


class ConfigOverrides:
    """The configurations of load requests by model.

    As in Triton, a later load without a configuration uses them until a file of the model is written. Files
    of a request are not kept: after them such a load returns to the repository's. A store that does not
    answer is logged, and no failure.

    Args:
        values: keeps them beyond this process.
        max_bytes: limit on all of them together.
    """

    def __init__(self, values: StoredValues | None = None, max_bytes: int = 0) -> None:
        self._values = KeptValues(values, "the configuration", "the configurations of load requests")
        self._max_bytes = max_bytes
        self._kept: dict[str, ConfigOverride] = {}

    @property
    def models(self) -> Collection[str]:
        """The identifiers of the models that have one."""
        return self._kept.keys()

    def check(self, models: Collection[str], config: str) -> None:
        """Refuse a configuration that is too much to keep.

        Raises:
            InferError: UNAVAILABLE.
        """
        others = sum(len(kept.config) for name, kept in self._kept.items() if name not in models)
        if others + len(models) * len(config) > self._max_bytes:
            limit = f"at most {self._max_bytes} bytes of them are kept (model_config_override_bytes)"
            raise unavailable(f"failed to keep the configuration of model '{min(models)}': {limit}")

    def loaded(self, name: str) -> str | None:
        """Return the configuration that a model was loaded with; None for the repository's."""
        kept = self._kept.get(name)
        return kept.config if kept is not None else None

    def current(self, name: str, files: str) -> str | None:
        """Return the configuration for the next load of a model whose files have this digest."""
        kept = self._kept.get(name)
        return kept.config if kept is not None and kept.files == files else None

    async def keep(self, loaded: ModelSpec) -> None:
        """Keep the configuration of a load that succeeded; none, if it was the repository's."""
        name = loaded.identifier
        if not loaded.override:
            await self.forget(name)
            return
        kept = ConfigOverride(loaded.override, loaded.override_files)
        if self._kept.get(name) != kept:
            self._kept[name] = kept
            await self._values.store(name, msgspec.json.encode(kept))

    async def forget(self, name: str) -> None:
        """Let the next load of a model read its configuration from the repository."""
        if self._kept.pop(name, None) is not None:
            await self._values.store(name, None)

    async def recover(self) -> None:
        """Read what an earlier manager has kept."""
        for name, text in (await self._values.read()).items():
            try:
                self._kept[name] = msgspec.json.decode(text, type=ConfigOverride)
            except msgspec.MsgspecError as error:
                logger.warning("cannot read the stored configuration of '%s': %s", name, error)

    async def retain(self, served: Iterable[str]) -> None:
        """Forget those of other models: they were served by an earlier deployment of the server."""
        for name in self._kept.keys() - set(served):
            await self.forget(name)
