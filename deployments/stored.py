"""Values in the cluster's store, which outlive the process that wrote them."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from app.core.system.lone_thread import LoneThread

logger = logging.getLogger(__name__)

_STORE_S: Final = 5.0
"""Time for the store to answer."""


class Store(Protocol):
    """Values by key; every method blocks."""

    def read(self, key: str) -> bytes | None:
        """Return a value; None where there is none."""

    def write(self, key: str, value: bytes) -> None:
        """Set a value."""

    def remove(self, key: str) -> None:
        """Remove a value, if there is one."""

    def keys(self, prefix: str) -> Sequence[str]:
        """Return the keys that begin with a prefix."""


class StoredValues:
    """The values of one kind, by name. Every method raises what the store raises, or TimeoutError.

    A store that hangs has one thread of each kind, and further calls fail at once.

    Args:
        store: holds them.
        prefix: begins their keys.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._thread = LoneThread(f"stored {prefix}")

    async def write(self, name: str, value: bytes) -> None:
        """Set a value."""
        await self._thread.run(partial(self._store.write, self._prefix + name, value), _STORE_S)

    async def remove(self, name: str) -> None:
        """Remove a value, if there is one."""
        await self._thread.run(partial(self._store.remove, self._prefix + name), _STORE_S)

    async def read(self) -> dict[str, bytes]:
        """Return all values, by name."""
        found = {}
        for key in await self._thread.run(partial(self._store.keys, self._prefix), _STORE_S):
            value = await self._thread.run(partial(self._store.read, key), _STORE_S)
            if value is not None:
                found[key.removeprefix(self._prefix)] = value
        return found


class KeptValues:
    """Values of one kind, by name, that may be lost: a store that does not answer is logged, and no failure.

    Args:
        values: keeps them; None keeps nothing.
        one, all_of_them: what the log calls them.
    """

    def __init__(self, values: StoredValues | None, one: str, all_of_them: str) -> None:
        self._values = values
        self._one, self._all = one, all_of_them

    async def read(self) -> dict[str, bytes]:
        """Return all values, by name; none if they cannot be read."""
        try:
            return await self._values.read() if self._values is not None else {}
        except Exception as error:
            logger.warning("cannot read %s: %r", self._all, error)
            return {}

    async def store(self, name: str, value: bytes | None) -> bool:
        """Set a value, or remove it; return whether that succeeded, or nothing is kept."""
        if self._values is None:
            return True
        try:
            await (self._values.remove(name) if value is None else self._values.write(name, value))
        except Exception as error:
            logger.warning("%s of '%s' is not stored beyond a restart: %r", self._one, name, error)
            return False
        return True
