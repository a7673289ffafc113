"""Versions that are taken out of service but go on with the sequences that they have."""

import asyncio
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Final

from app.core.residency import USE, ReplicaUse
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.routing.table import VersionEntry
from app.transport.channel.survey import ask

logger = logging.getLogger(__name__)

linger_pause = asyncio.sleep
_LOOK_S: Final = 0.5
_CONNECT_S: Final = 10.0
MOST_S: Final = 60.0
"""How long sequences may go on that do not end; more if they may be idle for longer."""


class Lingering:
    """Keeps versions until their sequences have ended, by themselves or by their idle time.

    Attributes:
        entries: those that are kept, by application.
    """

    def __init__(self, open_pools: Callable[[], Pools] | None = None) -> None:
        """`open_pools` makes what opens channels to replicas; without one nothing is kept."""
        self._open_pools = open_pools
        self.entries: dict[str, VersionEntry] = {}

    def keep(self, entry: VersionEntry) -> None:
        """Keep a version that is being taken out of service, if it has sequences to keep."""
        if self._open_pools is not None and entry.application and entry.keeps_sequences:
            self.entries[entry.application] = entry

    async def ended(self, application: str, wanted: Callable[[], bool]) -> bool:
        """Wait until the sequences of a version have ended; it is not kept then.

        Args:
            application: that of the version.
            wanted: whether requests may still get there.

        Returns:
            Whether it was kept.
        """
        entry = self.entries.get(application)
        if entry is None:
            return False
        try:
            async with asyncio.timeout(max(MOST_S, entry.sequence_idle_s)):
                await self._wait(entry, wanted)
        except TimeoutError:
            logger.warning("'%s' version %d ends, and sequences with it", entry.name, entry.version)
        except Exception:
            logger.exception("waiting for the sequences of '%s' version %d", entry.name, entry.version)
        finally:
            del self.entries[application]
            self._channels.close_control_pool(application)
        return True

    async def _wait(self, entry: VersionEntry, wanted: Callable[[], bool]) -> None:
        pool = self._channels.open_control_pool(entry.model, entry.application)
        await pool.wait_available(_CONNECT_S)
        while wanted() and await self._has_sequences(pool):
            await linger_pause(_LOOK_S)

    async def _has_sequences(self, pool: ReplicaPool) -> bool:
        """Return whether a replica has sequences, or may: it does not answer."""
        answers = await ask(pool.channels, USE, ReplicaUse, _LOOK_S)
        return len(answers) < len(pool.channels) or any(use.sequences for _, use in answers)

    @cached_property
    def _channels(self) -> Pools:
        assert self._open_pools is not None
        return self._open_pools()
