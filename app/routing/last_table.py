"""The last routing table in the cluster's store, for an ingress that starts while the manager is away."""

import asyncio
import hashlib
import logging
from contextlib import suppress
from typing import Final, Protocol

from app.core.system.tasks import Tasks
from app.routing.table import RoutingTable
from app.routing.table_bytes import decode_table

logger = logging.getLogger(__name__)

_PREFIX: Final = "table/"
_MOST_BYTES: Final = 32 << 20
"""A larger table is not kept."""
_REST_S_A_BYTE: Final = 1e-6
"""Time between two writes, by their bytes: a second for a megabyte."""


class Store(Protocol):
    """Values by key; every method blocks."""

    def read(self, key: str) -> bytes | None:
        """Return a value; None where there is none."""

    def write(self, key: str, value: bytes) -> None:
        """Set a value."""

    def remove(self, key: str) -> None:
        """Remove a value, if there is one."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with a prefix."""


class LastTable:
    """The last table of one start of the server.

    Args:
        store: the cluster's.
        key: the secret of the server's channels, which a start of the server makes.
        tasks: of the process that keeps tables; they end with it.
    """

    def __init__(self, store: Store, key: bytes, tasks: Tasks | None = None) -> None:
        self._store = store
        self._tasks = Tasks() if tasks is None else tasks
        self._key = _PREFIX + hashlib.sha256(b"table" + key).hexdigest()[:32]
        self._wanted = b""
        self._writing: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def keep(self, encoded: bytes, urgent: bool = False) -> None:
        """Have a table written soon: the newest, where tables follow each other.

        Args:
            encoded: the table.
            urgent: at once, and `kept` waits for it: without it requests would be answered by other versions.
        """
        self._wanted = encoded
        if urgent:
            self._settled.clear()
            self._urgent.set()
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write())

    async def kept(self) -> None:
        """Wait until the newest urgent table is written, or cannot be."""
        await self._settled.wait()

    async def _write(self) -> None:
        while encoded := self._wanted:
            self._urgent.clear()
            try:
                if len(encoded) <= _MOST_BYTES:
                    await asyncio.to_thread(self._store.write, self._key, encoded)
            except Exception as error:
                logger.warning("an ingress that starts without the manager will not serve: %r", error)
            if encoded is self._wanted:
                self._wanted = b""
                self._settled.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), _REST_S_A_BYTE * len(encoded))

    def discard_others(self) -> None:
        """Remove the tables of earlier starts; blocks."""
        for key in self._store.keys(_PREFIX):
            if key != self._key:
                self._store.remove(key)

    def read(self) -> RoutingTable | None:
        """Return the last table; None where there is none; blocks."""
        encoded = self._store.read(self._key)
        return decode_table(encoded) if encoded else None
