"""One operation on a model at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _Turn:
    """Whose turn it is to change one model."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Turns:
    """Locks by model. Names come from clients: an idle one leaves nothing behind."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def users(self, name: str) -> int:
        """Operations on a model that run or wait."""
        return self._turns[name].users if name in self._turns else 0

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Be the only one who changes this model."""
        turn = self._turns.setdefault(name, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[name]
