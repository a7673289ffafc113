"""One operation on a model at a time, a few loads at a time, and none that would wait for itself.

Python models load and unload others, also while they are being loaded. So an operation may wait for one that
waits for it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Final

from app.core.errors import InferError, invalid_arg

_asker: Final[ContextVar[str]] = ContextVar("asker", default="")


@contextmanager
def asked_by(asker: str) -> Iterator[None]:
    """Say who waits for what this task does: a model that is being loaded (its identifier), an application
    that serves, or "" for a client.
    """
    token = _asker.set(asker)
    try:
        yield
    finally:
        _asker.reset(token)


class Operation:
    """A change of a model. Until it is over, its asker waits, and what else is to be done with that model."""

    def __init__(self, model: str, asker: str) -> None:
        self.model = model
        self.asker = asker
        self.ends: set[str] = set()
        """Applications whose requests it waits for."""


class _Turn:
    """Whose turn it is to change one model; `operations` in the order in which they asked for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.operations: list[Operation] = []


class ModelLocks:
    """Locks by model, and places for loads. Names come from clients: an idle model leaves nothing behind."""

    def __init__(self, loads: int) -> None:
        """`loads` are the models that may load at a time; those that wait for another's do not count."""
        self._turns: dict[str, _Turn] = {}
        self._loads = loads
        self._loading: list[str] = []
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._turns)

    def users(self, name: str) -> int:
        """Operations on a model that run or wait."""
        return len(self._turns[name].operations) if name in self._turns else 0

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[Operation]:
        """Be the only one who changes this model.

        Raises:
            InferError: INVALID_ARG when the turn would never come.
        """
        turn = self._turns.setdefault(name, _Turn())
        operation = Operation(name, _asker.get())
        turn.operations.append(operation)
        self._changed.set()
        try:
            if circle := self._circle(operation):
                raise _circular(circle)
            async with turn.lock:
                yield operation
        finally:
            turn.operations.remove(operation)
            if not turn.operations:
                del self._turns[name]

    def waits_for_end(self, operation: Operation, application: str) -> bool:
        """Whether an operation can wait until an application has answered its requests, and now does.

        It cannot if one of those waits for this operation.
        """
        operation.ends.add(application)
        if self._circle(operation):
            operation.ends.remove(application)
            return False
        return True

    @asynccontextmanager
    async def loading(self, model: str) -> AsyncIterator[None]:
        """Be one of the few that load."""
        while self._count_loads() >= self._loads:
            self._changed.clear()
            await self._changed.wait()
        self._loading.append(model)
        try:
            yield
        finally:
            self._loading.remove(model)
            self._changed.set()

    def _count_loads(self) -> int:
        """Loads that do not wait for another: its turn might only come after one that has no place yet."""
        waiting = {operation.asker for operation in self._operations()}
        return sum(model not in waiting for model in self._loading)

    def _operations(self) -> Iterable[Operation]:
        return (operation for turn in self._turns.values() for operation in turn.operations)

    def _circle(self, start: Operation) -> list[Operation]:
        """Operations that wait for each other, from this one back to it; none if all is well."""
        paths, seen = [[start]], set[Operation]()
        while paths:
            path = paths.pop()
            for operation in self._awaited(path[-1]):
                if operation is start:
                    return [*path, start]
                if operation not in seen:
                    seen.add(operation)
                    paths.append([*path, operation])
        return []

    def _awaited(self, operation: Operation) -> Iterable[Operation]:
        """What must be over first: what had asked for the turn, and what its model or requests wait for."""
        others = self._turns[operation.model].operations
        yield from others[: others.index(operation)]
        askers = {operation.model, *operation.ends}
        yield from (each for each in self._operations() if each.asker and each.asker in askers)


def _circular(circle: Sequence[Operation]) -> InferError:
    models = [model for model, _ in groupby(operation.model for operation in circle[:-1])]
    return invalid_arg(
        f"circular load of models: {' -> '.join((*models, models[0]))}; a model that waits for its own load "
        "or unload, directly or through others, would wait for ever"
    )
