"""The repository manager, as an ingress or a replica that calls other models speaks to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from app.core.errors import InferError, unavailable
from app.routing.table import RoutingTable

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
MAX_CALLS = 512
"""Calls of clients under way: fewer than Serve lets the manager have, for ingresses have some too."""
MAX_FILE_BYTES = 512 << 20
"""Of the files that come with them; one call alone may have more."""


class ManagerClient:
    """The repository manager behind its Serve handle.

    What clients ask of it goes on when they have gone: how much of that there may be is bounded.
    """

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._calls: dict[asyncio.Future[Any], int] = {}

    async def index(self) -> list[tuple[str, str, str, str]]:
        rows: list[tuple[str, str, str, str]] = await self._ask(self._handle.index)
        return rows

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes], asker: str = "") -> None:
        """Load a model; `asker` is the replica that waits for it, "" a client."""
        size = sum(map(len, files.values()))
        await self._ask(self._handle.load, name, config, dict(files), asker, nbytes=size)

    async def unload(self, name: str, unload_dependents: bool, asker: str = "") -> None:
        await self._ask(self._handle.unload, name, unload_dependents, asker)

    async def configure(self, change: bytes, current: bytes) -> None:
        """Change live settings; returns when every ingress goes by them."""
        await self._ask(self._handle.configure, change, current)

    async def _ask(self, method: Any, *arguments: Any, nbytes: int = 0) -> Any:
        calls = self._calls
        if calls and (len(calls) >= MAX_CALLS or sum(calls.values()) + nbytes > MAX_FILE_BYTES):
            raise unavailable("too many requests to the repository manager are under way")
        call = asyncio.ensure_future(_call(method.remote(*arguments)))
        calls[call] = nbytes
        call.add_done_callback(self._answered)
        return await asyncio.shield(call)

    def _answered(self, call: asyncio.Future[Any]) -> None:
        del self._calls[call]
        if not call.cancelled():
            call.exception()  # who asked may have gone, and asyncio would complain that nobody looked at it

    async def watch(self, ingress: str, applied: int) -> bytes:
        """The next routing table.

        Cancelled, it ends over there too: while a call is under way, Serve does not stop the manager.
        """
        response = self._handle.watch.remote(ingress, applied)
        try:
            table: bytes = await _call(response)
        except asyncio.CancelledError:
            response.cancel()
            raise
        return table

    async def receive(self, ingress: str, number: int) -> None:
        """Tell the manager that a table has arrived."""
        await _call(self._handle.receive.remote(ingress, number))


class Follower(Protocol):
    """What goes by routing tables: a router, say."""

    table: RoutingTable

    async def apply(self, table: RoutingTable) -> None:
        """Go by this table from now on; set `table`."""


async def follow(
    manager: ManagerClient, router: Follower, watcher: str, applied: Callable[[RoutingTable], object]
) -> None:
    """Keep a router at the manager's newest table, for ever; call `applied` with each that it took."""
    while True:
        try:
            answer = await manager.watch(watcher, router.table.number)
            table = msgspec.msgpack.decode(answer, type=RoutingTable)
            if table.number != router.table.number:
                await manager.receive(watcher, table.number)
                await router.apply(table)
                applied(table)
        except InferError as error:
            logger.warning("%s; serving on by the last routing table", error.message)
            await asyncio.sleep(_RETRY_S)
        except Exception:
            logger.exception("following the repository manager")
            await asyncio.sleep(_RETRY_S)


async def _call(response: Awaitable[Any]) -> Any:
    """Await a Serve call; an `InferError` raised over there comes out as itself."""
    try:
        return await response
    except InferError as error:
        # Serve raises a subclass made of our error and its own task error.
        raise error.failure.error() from None
    except Exception as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, InferError):
            raise cause from None
        raise unavailable(f"the repository manager does not answer: {type(error).__name__}") from error
