"""Publishes routing tables, and tracks which ingresses route by which table."""

import asyncio
import time
from collections import Counter
from contextlib import suppress

import msgspec

from app.core.observability.live_settings import LiveSettings, decode_change, decode_live
from app.core.observability.log import LogConfig
from app.routing.last_table import LastTable
from app.routing.table import RoutingTable
from app.routing.table_bytes import encode_table
from deployments.rollout.lingering import Lingering

PUBLISH_S = 0.1
"""Shortest time from one table that ingresses get to the next: what changes in between goes out together."""
KEPT_S = 1.0
"""Time in which a change of a rollout is also in the cluster's store, before those who wait for it go on."""
WATCH_S = 5.0
"""Longest time that an ingress waits for a new table in one call."""
RECEIPT_S = 2.0
"""Time in which a live ingress confirms that it has received a table."""
CONFIRM_S = 5.0
"""Time in which a live ingress confirms again, while it connects to the replicas that a table adds."""


class _Ingress:
    """The last calls of one ingress: table numbers, and `time.monotonic` of the last call."""

    def __init__(self) -> None:
        self.received = 0
        self.applied = 0
        self.last_call = 0.0


class RoutingPublisher:
    """The current table, its watchers and their acknowledgements.

    An ingress confirms that it has received a table, again and again while it connects to replicas, and then,
    by watching for the next one, that it routes by it. One that does not confirm is assumed dead: nobody who
    has asked for a change waits for it.

    Args:
        namespacing: see `RoutingTable`.
        last: keeps tables for ingresses that start without this manager; None for none.
        lingering: keeps versions that go on with their sequences alone; None for none.

    Attributes:
        load_failures, lingering: see `RoutingTable`; the next table has them.
        table: the newest table; ingresses may get it `PUBLISH_S` later.
    """

    def __init__(
        self,
        namespacing: bool = False,
        last: LastTable | None = None,
        lingering: Lingering | None = None,
    ) -> None:
        self._last = last
        # The clock, so that numbers still rise when a restarted manager starts over.
        self.table = RoutingTable(number=time.time_ns() // 1_000_000, namespacing=namespacing)
        self.load_failures: Counter[str] = Counter()
        self.lingering = lingering or Lingering()
        self._live: LiveSettings | None = None
        self._handed_out = self.table
        self._encoded = encode_table(self.table)
        self._resting: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._ingresses: dict[str, _Ingress] = {}

    def configure(self, change: bytes, current: bytes) -> LiveSettings:
        """Change the live settings of the next table; return all of them.

        Args:
            change: a msgpack `LiveChange`.
            current: the `LiveSettings` of the requesting ingress, which survive a restart of the manager.
        """
        self._live = (self._live or decode_live(current)).changed(decode_change(change))
        return self._live

    @property
    def log(self) -> LogConfig | None:
        """The current log settings; None for those of the start."""
        return self._live.log if self._live is not None else None

    async def publish(self, content: RoutingTable) -> int:
        """Make a table of these entries, flags and splits the current one; return its number."""
        self.table = msgspec.structs.replace(
            content,
            number=self.table.number + 1,
            live=self._live,
            namespacing=self.table.namespacing,
            load_failures=dict(self.load_failures),
            lingering=tuple(self.lingering.entries.values()),
        )
        if self._resting is None:
            self._hand_out()
        return self.table.number

    def _hand_out(self) -> None:
        """Give the newest table to those that watch; the next one goes out after `PUBLISH_S`."""
        self._resting = None
        if self._handed_out is not self.table:
            splits = self._handed_out.splits
            self._handed_out, self._encoded = self.table, encode_table(self.table)
            self._resting = asyncio.get_running_loop().call_later(PUBLISH_S, self._hand_out)
            if self._last is not None:
                self._last.keep(self._encoded, urgent=splits != self.table.splits)
            self._notify()

    def _notify(self) -> None:
        """Wake whoever waits for a table or an acknowledgement."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def receive(self, ingress: str, number: int) -> None:
        """Record that an ingress has table `number` and is connecting to the replicas that it adds."""
        state = self._record_call(ingress)
        state.received = max(state.received, number)
        self._notify()

    async def watch(self, ingress: str, applied: int) -> bytes:
        """Record that an ingress routes by table `applied`; return the next one, b"" if none comes soon.

        See `decode_table`.
        """
        state = self._record_call(ingress)
        state.received = state.applied = applied
        self._notify()
        try:
            async with asyncio.timeout(WATCH_S):
                while self._handed_out.number == applied:
                    await self._changed.wait()
        except TimeoutError:
            return b""
        finally:
            state.last_call = time.monotonic()
        return self._encoded

    async def wait_acknowledged(self, number: int, expected: int = 0) -> None:
        """Wait until every live ingress routes by table `number` or a later one.

        Args:
            number: a published table.
            expected: the number of ingress replicas; a restarted manager does not know all of them yet and
                waits `RECEIPT_S` for their first calls.
        """
        started = time.monotonic()
        while True:
            self._forget_dead(number, started)
            behind = [i for i in self._ingresses.values() if i.applied < number]
            missing = len(self._ingresses) < expected and time.monotonic() - started < RECEIPT_S
            if not behind and not missing:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._changed.wait()
        if self._last is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._last.kept(), KEPT_S)

    def _record_call(self, ingress: str) -> _Ingress:
        state = self._ingresses.setdefault(ingress, _Ingress())
        state.last_call = time.monotonic()
        return state

    def _forget_dead(self, number: int, started: float) -> None:
        now = time.monotonic()
        for name, state in list(self._ingresses.items()):
            if state.applied >= number:
                continue
            allowed = RECEIPT_S if state.received < number else CONFIRM_S
            if now - max(state.last_call, started) > allowed:
                del self._ingresses[name]
