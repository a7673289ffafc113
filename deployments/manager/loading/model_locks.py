"""Locks by model, a limit on concurrent loads, and deadlock detection.

Python models load and unload other models, also while they are loaded themselves, so operations can wait for
each other in a cycle.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Final

from app.core.errors import InferError, invalid_arg

LONG_LOAD_S: Final = 30.0
"""A load that takes longer no longer keeps others from a slot: it may never return."""

_requester: Final[ContextVar[str]] = ContextVar("requester", default="")
_who: Final[ContextVar[str]] = ContextVar("who", default="")


@contextmanager
def requested_by(requester: str, who: str = "") -> Iterator[None]:
    """Set the requester of the operations in this context.

    Args:
        requester: the identifier of a model that is being loaded, the application of one that serves, or ""
            for a client. It waits until the operations have ended.
        who: the name of the client's token, "" if it has none.
    """
    tokens = _requester.set(requester), _who.set(who)
    try:
        yield
    finally:
        _requester.reset(tokens[0])
        _who.reset(tokens[1])


def who_asked() -> str:
    """Return the name of the token of the client that has requested this; "" without one."""
    return _who.get()


class Operation:
    """A change of a model; its requester and later operations on the model wait until it has ended.

    Attributes:
        model: the identifier of the model.
        requested_by: see the function `requested_by`.
        waits_on: applications whose requests in flight it waits for.
    """

    def __init__(self, model: str, requester: str) -> None:
        self.model = model
        self.requested_by = requester
        self.waits_on: set[str] = set()


class _ModelLock:
    """The lock of one model, with its operations in the order of their requests."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.operations: list[Operation] = []


class ModelLocks:
    """Locks by model, and slots for loads.

    Clients choose the names, so the lock of an idle model is removed.

    Args:
        loads: models that may load at the same time; a load that waits for another one is not counted, nor
            one that takes longer than `long_load_s`.
    """

    def __init__(self, loads: int, long_load_s: float = LONG_LOAD_S) -> None:
        self._locks: dict[str, _ModelLock] = {}
        self._loads = loads
        self._long_load_s = long_load_s
        self._loading: dict[object, str] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._locks)

    def users(self, name: str) -> int:
        """Return the number of operations on a model, running and waiting."""
        return len(self.operations(name))

    def operations(self, name: str) -> Sequence[Operation]:
        """Return the operations on a model, the running one first."""
        return self._locks[name].operations if name in self._locks else ()

    @asynccontextmanager
    async def acquire(self, name: str) -> AsyncIterator[Operation]:
        """Hold the lock of a model.

        Raises:
            InferError: INVALID_ARG when waiting for the lock would be a deadlock.
        """
        lock = self._locks.setdefault(name, _ModelLock())
        operation = Operation(name, _requester.get())
        lock.operations.append(operation)
        self._changed.set()
        try:
            if cycle := self._cycle(operation):
                raise _circular(cycle)
            async with lock.lock:
                yield operation
        finally:
            lock.operations.remove(operation)
            if not lock.operations:
                del self._locks[name]

    def wait_on(self, operation: Operation, application: str) -> bool:
        """Record that an operation waits for the requests of an application, unless that is a deadlock.

        Returns:
            Whether it can wait; False when one of those requests waits for this operation.
        """
        operation.waits_on.add(application)
        if self._cycle(operation):
            operation.waits_on.remove(application)
            return False
        return True

    @asynccontextmanager
    async def load_slot(self, model: str) -> AsyncIterator[None]:
        """Hold one of the slots for loads."""
        while self._used_slots() >= self._loads:
            self._changed.clear()
            await self._changed.wait()
        slot = object()
        self._loading[slot] = model
        overdue = asyncio.get_running_loop().call_later(self._long_load_s, self._free_slot, slot)
        try:
            yield
        finally:
            overdue.cancel()
            self._free_slot(slot)

    def _free_slot(self, slot: object) -> None:
        self._loading.pop(slot, None)
        self._changed.set()

    def _used_slots(self) -> int:
        # A load that waits for another must not keep that one from getting a slot.
        waiting = {operation.requested_by for operation in self._operations()}
        return sum(model not in waiting for model in self._loading.values())

    def _operations(self) -> Iterable[Operation]:
        return (operation for lock in self._locks.values() for operation in lock.operations)

    def _cycle(self, start: Operation) -> list[Operation]:
        """Return operations that wait for each other, from `start` back to it; empty without a deadlock."""
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
        """Return the operations that must end before this one does."""
        others = self._locks[operation.model].operations
        yield from others[: others.index(operation)]
        # The load of this model, and the requests it waits for, may have requested operations themselves.
        requesters = {operation.model, *operation.waits_on} - {""}
        yield from (each for each in self._operations() if each.requested_by in requesters)


def _circular(cycle: Sequence[Operation]) -> InferError:
    models = [model for model, _ in groupby(operation.model for operation in cycle[:-1])]
    return invalid_arg(
        f"circular load of models: {' -> '.join((*models, models[0]))}; a model that waits for its own load "
        "or unload, directly or through others, would wait for ever"
    )
