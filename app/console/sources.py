"""The sources of pages: one for everybody where the server asks for no tokens, else one for each token."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import Final

from app.console.history import MAX_BYTES
from app.console.source import Refused, Source

MAX_CLIENTS: Final = 8
"""Tokens whose figures are kept; those of the one that was not viewed for longest go first."""
_PROBE: Final = "/v2"
_PROBE_S: Final = 10.0
_RETRY_S: Final = 2.0
_OPEN: Final = (
    "this console is open to the network, and its server asks nobody for a token (--auth-tokens-file): "
    "whoever reaches it could do everything. Give the server tokens, or have the console listen on loopback"
)
_UNKNOWN: Final = "the server does not answer, so whether it asks for tokens is not known"

Get = Callable[[str, str], Awaitable[bytes]]
"""Gets a path with the value of an `Authorization` header; raises as `Ask` does."""


class Sources:
    """Finds the source of a client. What one token is told is never shown to another.

    Attributes:
        tokens: whether the server asks for tokens; None while that is not known.
    """

    def __init__(self, get: Get) -> None:
        self._get = get
        self.tokens: bool | None = None
        self._probed = -_PROBE_S
        self._anybody = Source(partial(self._asked, ""), lambda: self.tokens is False)
        self._clients: dict[str, Source] = {}
        self._tasks: dict[Source, asyncio.Task[None]] = {}

    def open(self) -> None:
        """Begin to follow the server."""
        self._begin(self._anybody)

    async def close(self) -> None:
        """End all sources."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def of(self, authorization: str) -> Source:
        """Return the source of a client by its `Authorization` header, "" without one.

        Raises:
            Refused: it has no token, where one is needed, or none that is known.
        """
        await self._probe()
        if self.tokens is not True:
            return self._anybody
        if not authorization:
            raise Refused(401, "the server asks for a token")
        found = self._clients.pop(authorization, None)
        if found is None:
            found = Source(partial(self._asked, authorization), max_bytes=MAX_BYTES // 4)
            await found.look()
            if found.status in (401, 403):  # or whoever guesses would push the others out
                raise Refused(found.status, found.problem)
            await self._make_room()
            self._begin(found)
        self._clients[authorization] = found  # the last one is the one that was viewed last
        return found

    async def why_not_open(self) -> str:
        """Return why a console that the network reaches must not answer; "" if it may."""
        await self._probe()
        if self.tokens is None:
            return _UNKNOWN
        return "" if self.tokens else _OPEN

    async def _probe(self) -> None:
        patience = _RETRY_S if self.tokens is None else _PROBE_S
        if monotonic() - self._probed < patience:
            return
        self._probed = monotonic()
        try:
            await self._get(_PROBE, "")
            self.tokens = False
        except Refused as error:
            if error.status == 401:
                self.tokens = True
        except OSError:
            pass

    async def _asked(self, authorization: str, path: str) -> bytes:
        try:
            answer = await self._get(path, authorization)
        except Refused as error:
            if error.status == 401:
                self.tokens = True
            raise
        if not authorization:
            self.tokens = False
        return answer

    async def _make_room(self) -> None:
        if len(self._clients) < MAX_CLIENTS:
            return
        oldest = next(iter(self._clients))
        task = self._tasks.pop(self._clients.pop(oldest))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _begin(self, source: Source) -> None:
        self._tasks[source] = asyncio.create_task(source.run())
