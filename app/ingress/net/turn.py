"""Turns of streams: one that has much to write lets other connections have the event loop in between."""

import asyncio
from typing import Final

_MOST: Final = 32
"""Responses that a stream writes in a turn: 0.5 ms of a processor."""
_BEHIND: Final = 4096
"""Waiting responses of a stream that no longer gives way: more and more would be buffered."""


class Turn:
    """Counts what one stream writes."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written = 0

    async def wrote(self, waiting: int) -> None:
        """Count a response, with so many more waiting; after some of them the turn is that of others."""
        self._written += 1
        if self._written % _MOST == 0 and waiting < _BEHIND:
            await asyncio.sleep(0)
