"""Which models the start of a server has loaded, beyond the manager that did it."""

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec

from app.core.encoding import to_msgpack
from deployments.stored import KeptValues, StoredValues

PREFIX: Final = "started/"
"""Begins the key of the stored names."""


class StartedModels:
    """The models of a server's start. A store that does not answer is logged, and no failure.

    A manager that takes the place of an earlier one loads no others: they came to the repositories since, or
    were unloaded.

    Args:
        values: keeps their names beyond this process.
        key: the secret of the server's channels, which another deployment does not share.
        named: what the settings say on which models are loaded at the start.
    """

    def __init__(self, values: StoredValues | None, key: bytes, named: Collection[str]) -> None:
        self._values = KeptValues(values, "the start", "the models of the start")
        self._server = hashlib.sha256(to_msgpack((key, sorted(named)))).hexdigest()[:16]
        self._names: frozenset[str] | None = None

    async def recover(self) -> frozenset[str] | None:
        """Return their identifiers; None before the start of this server has ended."""
        stored = await self._values.read()
        for other in stored.keys() - {self._server}:
            await self._values.store(other, None)
        if self._server in stored:
            self._names = msgspec.msgpack.decode(stored[self._server], type=frozenset[str])
        return self._names

    async def keep(self, names: Collection[str]) -> None:
        """Keep them; call it when all have been loaded, or failed."""
        self._names = frozenset(names)
        await self._values.store(self._server, to_msgpack(sorted(self._names)))

    async def forget(self, names: Collection[str]) -> None:
        """Forget models that were unloaded since."""
        if self._names is not None and not self._names.isdisjoint(names):
            await self.keep(self._names - set(names))
