"""Publishes routing tables and knows which ingresses route by which."""

import asyncio
import time

from app.core.observability.live_settings import LiveSettings, decode_change, decode_live
from app.core.observability.log import LogConfig
from app.routing.table import RoutingTable, VersionEntry

WATCH_S = 5.0
RECEIPT_S = 2.0
APPLY_S = 15.0


class _Ingress:
    """What one ingress said last; times are `time.monotonic`."""

    def __init__(self) -> None:
        self.received = 0
        self.applied = 0
        self.heard = 0.0


class RoutingPublisher:
    """The current table, its watchers and their acknowledgements.

    An ingress first says that it has received a table, then, by watching for the next one, that it routes by
    it. One that does not even say the first within `RECEIPT_S` is taken for dead.
    """

    def __init__(self, namespacing: bool = False) -> None:
        # Numbers go on rising when a restarted manager starts over.
        self.table = RoutingTable(number=time.time_ns() // 1_000_000, namespacing=namespacing)
        self._live: LiveSettings | None = None
        self._changed = asyncio.Condition()
        self._ingresses: dict[str, _Ingress] = {}

    def configure(self, change: bytes, current: bytes) -> LiveSettings:
        """Change the live settings that the next table will have; returns all of them.

        Args:
            change: a msgpack `LiveChange`.
            current: the `LiveSettings` of the asking ingress: so they outlive a restart of the manager.
        """
        self._live = (self._live or decode_live(current)).changed(decode_change(change))
        return self._live

    @property
    def log(self) -> LogConfig | None:
        """The log settings of now; None for those of the start."""
        return self._live.log if self._live is not None else None

    async def publish(self, entries: tuple[VersionEntry, ...], initialised: bool) -> int:
        """Make a new table the current one and return its number."""
        async with self._changed:
            number, namespacing = self.table.number + 1, self.table.namespacing
            self.table = RoutingTable(number, initialised, entries, self._live, namespacing)
            self._changed.notify_all()
        return self.table.number

    async def receive(self, ingress: str, number: int) -> None:
        """An ingress has table `number` and is connecting to what it adds."""
        async with self._changed:
            state = self._hear(ingress)
            state.received = max(state.received, number)
            self._changed.notify_all()

    async def watch(self, ingress: str, applied: int) -> RoutingTable:
        """An ingress routes by table `applied`; return the next one, or the same after `WATCH_S` seconds."""
        async with self._changed:
            state = self._hear(ingress)
            state.received = state.applied = applied
            self._changed.notify_all()
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._changed.wait_for(lambda: self.table.number != applied)
            except TimeoutError:
                pass
            finally:
                state.heard = time.monotonic()
        return self.table

    async def settled(self, number: int, expected: int = 0) -> None:
        """Wait until every live ingress routes by table `number` or a later one.

        Args:
            number: a published table.
            expected: ingress replicas there should be; a restarted manager has not heard of all of them yet
                and gives them `RECEIPT_S` to speak up.
        """
        started = time.monotonic()
        while True:
            self._forget_dead(number, started)
            behind = [i for i in self._ingresses.values() if i.applied < number]
            missing = len(self._ingresses) < expected and time.monotonic() - started < RECEIPT_S
            if not behind and not missing:
                return
            async with self._changed:
                try:
                    async with asyncio.timeout(0.2):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    def _hear(self, ingress: str) -> _Ingress:
        state = self._ingresses.setdefault(ingress, _Ingress())
        state.heard = time.monotonic()
        return state

    def _forget_dead(self, number: int, started: float) -> None:
        now = time.monotonic()
        for name, state in list(self._ingresses.items()):
            silent = now - max(state.heard, started)
            if (state.received < number and silent > RECEIPT_S) or (
                state.applied < number and silent > APPLY_S
            ):
                del self._ingresses[name]
