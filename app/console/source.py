"""What the server tells one client, kept for all pages of that client: the newest rows, and their history.

The server is asked once a second while a page is open, however many there are. While none is open it is
asked every ten seconds where everybody may ask, for the history, and not at all with a client's token.
"""

import asyncio
import json
import secrets
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

import msgspec

from app.console.alerts import Alerts
from app.console.figures import Figures, Recent, as_row, quantile_ms
from app.console.history import MAX_BYTES, History
from app.core.observability.counters import VersionCounters

EVERY_S: Final = 1.0
SLOWLY_S: Final = 10.0
ALERTS_S: Final = 10.0
"""The server's own metrics are asked for so often, where this client may read them."""
_REFUSED_S: Final = 300.0
"""They are asked for again so long after the server has refused."""
VIEWED_S: Final = 4.0
"""A page asks every second: one that did not for so long is closed or hidden."""
TOTAL: Final = ""
"""The id of the history of all versions together."""
_TOLD: Final = ("at", "ready")
_EVENTS: Final = 500
"""Changes of states that are kept; their reasons are shortened."""
_MAX_REASON: Final = 1000


class Refused(Exception):
    """The server answered with another status than 200; `status`, and its text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


Ask = Callable[[str], Awaitable[bytes]]
"""Gets a path of the server.

Raises:
    Refused: it answers with an error.
    OSError: it does not answer.
"""


class Source:
    """Follows the server with the rights of one client.

    Args:
        ask: see `Ask`; sends the client's token.
        idles: whether the server is asked while no page is open.
        max_bytes: of the history.
    """

    def __init__(
        self, ask: Ask, idles: Callable[[], bool] = lambda: False, max_bytes: int = MAX_BYTES
    ) -> None:
        self._ask, self._idles = ask, idles
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._names_changed = 0
        self._cursor = ""
        self._bounds: list[float] = []
        self._told: dict[str, Any] = {}
        self._described: dict[str, dict[str, Any]] = {}
        self._recent: dict[str, Recent] = {}
        self._figures: dict[str, Figures] = {}
        self._changed: dict[str, int] = {}
        self._total = Figures()
        self._alerts = Alerts()
        self._told_alerts: list[dict[str, Any]] = []
        self._alerts_asked = -ALERTS_S
        self._events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._wake = asyncio.Event()
        self._looked = asyncio.Event()
        self._begun, self._ended, self._wanted = 0, 0, 1
        """The last look that has begun, the last one that is over, and the one that pages wait for."""
        self.history = History(max_bytes)
        self.problem = "The server was not asked yet."
        self.status = 0
        self.viewed = 0.0

    async def run(self) -> None:
        """Follow the server for ever."""
        while True:
            self._wake.clear()  # a page that opens meanwhile is heard
            if self._is_viewed() or self._idles() or self._ended < self._wanted:
                await self.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), EVERY_S if self._is_viewed() else SLOWLY_S)

    def _is_viewed(self) -> bool:
        return monotonic() - self.viewed < VIEWED_S

    async def live(self, cursor: str) -> dict[str, Any]:
        """Return what has changed since the answer with this cursor, for a page that is open now."""
        if not self._is_viewed():
            self._wanted = self._begun + 1  # one that has begun may be answered as it was before
            self._wake.set()
        self.viewed = monotonic()
        wanted = self._wanted
        while self._ended < wanted:
            await self._looked.wait()
        epoch, _, number = cursor.partition(".")
        after = int(number) if epoch == self._epoch and number.isascii() and number.isdigit() else -1
        rows = [self._row(key) for key, changed in self._changed.items() if changed > after]
        return {
            "cursor": f"{self._epoch}.{self._number}",
            "problem": self.problem,
            "status": self.status,
            "server": {**self._told, "versions": len(self._described), **msgspec.to_builtins(self._total)},
            "alerts": self._told_alerts,
            "models": rows,
            "ids": list(self._described) if self._names_changed > after else None,
        }

    def _row(self, key: str) -> dict[str, Any]:
        return {"id": key, **as_row(self._described[key], self._figures[key])}

    async def look(self) -> None:
        """Ask the server once."""
        self._begun += 1
        try:
            answer = json.loads(await self._ask(f"/v2/nereid/overview?after={self._cursor}"))
            self._take(answer)
            await self._look_for_alerts()
            self.problem, self.status = "", 200
        except Refused as error:
            self.problem, self.status = str(error), error.status
            self._cursor = ""
            if error.status in (401, 403):  # what it was told before is not for a token that is revoked
                self._forget_all_but(set())
                self.history.keep(set())
                self._events.clear()
                self._alerts, self._told_alerts = Alerts(), []
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.problem, self.status = f"The server does not answer: {error or type(error).__name__}", 0
            self._cursor = ""
        self._ended = self._begun
        self._looked.set()
        self._looked = asyncio.Event()

    async def _look_for_alerts(self) -> None:
        """Read the server's own metrics from time to time, and say what all that is known means."""
        if monotonic() - self._alerts_asked < ALERTS_S:
            return
        self._alerts_asked = monotonic()
        self._alerts.stand(time())
        try:
            answer = json.loads(await self._ask("/v2/nereid/metrics"))
            self._alerts.add(time(), answer["metrics"], answer["process"])
        except Refused:  # of this client, or by an older server
            self._alerts_asked += _REFUSED_S
        self._told_alerts = self._alerts.found(time())

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._number += 1
        self._cursor, self._bounds = answer["cursor"], answer["bounds_s"]
        self._told = {name: answer[name] for name in _TOLD}
        moved = {self._describe(version) for version in answer["versions"]}
        if answer["names"] is not None:
            self._forget_all_but({_id(*name) for name in answer["names"]})
            self._alerts.forget({(name, version) for name, version in answer["names"]})
        for key in self._described.keys() - moved:
            self._rest(key)
        self._sum(moved & self._described.keys())
        rows = {key: figures.values() for key, figures in self._figures.items()}
        self.history.write(time(), {TOTAL: self._total.values(), **rows})

    def _describe(self, version: dict[str, Any]) -> str:
        key = _id(version["name"], version["version"])
        counters = version.pop("figures")
        if key not in self._described:
            self._recent[key] = Recent()
            self._names_changed = self._number
        if counters is None:
            self._recent[key] = Recent()
        else:
            known = msgspec.convert(counters, VersionCounters, str_keys=True)
            self._recent[key].add(known)
            self._alerts.add_counters(time(), version["name"], version["version"], known)
        self._remember(self._described.get(key), version)
        version["restarts"] = 0 if counters is None else counters["restarts"]
        version["memory_bytes"] = (counters or {}).get("memory") or None
        self._described[key] = version
        self._figures[key] = self._recent[key].figures(self._bounds)
        self._changed[key] = self._number
        return key

    def _remember(self, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        """Keep what has become of a version: loaded, failed, unloaded."""
        if before is not None and all(before[name] == now[name] for name in ("state", "ready_at", "reason")):
            return
        loaded = bool(now["ready_at"]) and now["look"] != "bad"
        if before is None and not loaded:  # it was so before anybody looked
            return
        told = {name: now[name] for name in ("name", "version", "word", "look", "load_s")}
        at = now["ready_at"] if loaded else time()
        self._events.append({"at": at, **told, "reason": now["reason"][:_MAX_REASON]})

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the changes of states that were seen, of a model or of all for "", the latest first."""
        return [event for event in reversed(self._events) if name in ("", event["name"])]

    def _rest(self, key: str) -> None:
        """Show a version whose counters stand still as what it is."""
        known = self._figures[key]
        resting = Figures(pending=known.pending)
        if known != resting:
            self._figures[key], self._changed[key] = resting, self._number

    def _forget_all_but(self, keys: set[str]) -> None:
        for key in self._described.keys() - keys:
            for kept in (self._described, self._recent, self._figures, self._changed):
                del kept[key]
            self._names_changed = self._number
        self.history.keep(keys | {TOTAL})

    def _sum(self, moved: set[str]) -> None:
        counts: Counter[int] = Counter()
        for key in moved:
            counts.update(self._recent[key].answered())
        every = self._figures.values()
        self._total = Figures(
            sum(each.rate for each in every),
            sum(each.errors for each in every),
            quantile_ms(self._bounds, counts, 0.5),
            quantile_ms(self._bounds, counts, 0.99),
            pending=sum(each.pending for each in every),
        )


def _id(name: str, version: str) -> str:
    return f"{name}:{version}"
