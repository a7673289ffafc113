"""Values in the cluster's store, which outlive the process that wrote them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

logger = logging.getLogger(__name__)

_STORE_S: Final = 5.0
"""Time for the store to answer."""
_Result = TypeVar("_Result")


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

    Args:
        store: holds them.
        prefix: begins their keys.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    async def write(self, name: str, value: bytes) -> None:
        """Set a value."""
        await _ask(lambda: self._store.write(self._prefix + name, value))

    async def remove(self, name: str) -> None:
        """Remove a value, if there is one."""
        await _ask(lambda: self._store.remove(self._prefix + name))

    async def read(self) -> dict[str, bytes]:
        """Return all values, by name."""
        values = await _ask(self._read)
        return {key.removeprefix(self._prefix): value for key, value in values.items() if value is not None}

    def _read(self) -> dict[str, bytes | None]:
        return {key: self._store.read(key) for key in self._store.keys(self._prefix)}


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

    async def store(self, name: str, value: bytes | None) -> None:
        """Set a value, or remove it."""
        if self._values is None:
            return
        try:
            await (self._values.remove(name) if value is None else self._values.write(name, value))
        except Exception as error:
            logger.warning("%s of '%s' is not stored beyond a restart: %r", self._one, name, error)


async def _ask(call: Callable[[], _Result]) -> _Result:
    async with asyncio.timeout(_STORE_S):
        return await asyncio.to_thread(call)
