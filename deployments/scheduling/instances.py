"""The instances of a scheduler: the state of each, and what changes it.

::

                      start              prepare
    add ──► FREE ────────────► EXECUTING ────────► PREPARED
             ▲                    │  ▲                │
             ├────────end─────────┤  └──────end───────┘
             │                    ├─── end, lost ───► RECOVERING ──► as after an execution
             │                    └─── end, leaves ─► GONE

An instance that is suspended (lost) or removed (leaves) while it executes is only marked: its executions end
first, then it recovers, then it goes. One that is free does so at once.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, NamedTuple

from deployments.execution.instance_thread import InstanceThread


class Phase(Enum):
    """A state of an instance."""

    FREE = "free"
    EXECUTING = "executing a batch, or waiting for the rate limiter with it"
    PREPARED = "executing a batch, with the next one at hand"
    RECOVERING = "waiting for what it has lost, a process for example"
    GONE = "removed"


class State(NamedTuple):
    """A phase, and what has to follow it.

    Attributes:
        lost: it recovers before it executes anything else.
        leaves: it is removed when it has nothing more to do.
    """

    phase: Phase
    lost: bool = False
    leaves: bool = False


FREE: Final = State(Phase.FREE)
EXECUTING: Final = State(Phase.EXECUTING)


def end(state: State) -> State:
    """Return the state once an execution or a recovery is over, or what is free was marked."""
    if state is EXECUTING:  # nearly always
        return FREE
    if state.phase is Phase.PREPARED:
        return state._replace(phase=Phase.EXECUTING)
    if state.lost:
        return State(Phase.RECOVERING, leaves=state.leaves)
    return State(Phase.GONE) if state.leaves else FREE


class Instances:
    """The instances of one scheduler.

    Args:
        available: called when an instance has recovered, and is free.

    Attributes:
        free: those that nothing executes on; the last one is given work first.
    """

    def __init__(self, available: Callable[[InstanceThread], object]) -> None:
        self.free: list[InstanceThread] = []
        self._available = available
        self._states: dict[InstanceThread, State] = {}
        self._removed: dict[InstanceThread, asyncio.Future[None]] = {}
        self._waits: dict[InstanceThread, Callable[[], object]] = {}

    def add(self, instance: InstanceThread) -> None:
        """Add an instance that is free."""
        self._states[instance] = FREE
        self.free.append(instance)

    def start(self, instance: InstanceThread | None = None) -> InstanceThread:
        """Take a free instance, this one or any, for an execution."""
        if instance is None:
            instance = self.free.pop()
        else:
            self.free.remove(instance)
        self._states[instance] = EXECUTING
        return instance

    def executing(self) -> InstanceThread | None:
        """Return an instance that executes, and stays; None without any."""
        return next((each for each, state in self._states.items() if state == EXECUTING), None)

    def stays(self, instance: InstanceThread) -> bool:
        """Whether an instance is not removed once its execution has ended."""
        return not self._states[instance].leaves

    def prepare(self, instance: InstanceThread) -> None:
        """Note that an executing instance has been given its next batch."""
        self._states[instance] = self._states[instance]._replace(phase=Phase.PREPARED)

    def end(self, instance: InstanceThread) -> bool:
        """Note the end of an execution; return whether the next one has begun."""
        begun = self._states[instance].phase is Phase.PREPARED
        self._settle(instance)
        return begun

    def suspend(self, instance: InstanceThread, wait: Callable[[], object]) -> None:
        """Have an instance execute nothing after its batch until `wait` has returned on its thread."""
        self._waits[instance] = wait
        self._mark(instance, self._states[instance]._replace(lost=True))

    def remove(self, instance: InstanceThread, removed: asyncio.Future[None]) -> None:
        """Give an instance nothing new; `removed` is done when it has nothing more to do."""
        self._removed[instance] = removed
        self._mark(instance, self._states[instance]._replace(leaves=True))

    def _mark(self, instance: InstanceThread, marked: State) -> None:
        was_free = self._states[instance] is FREE
        self._states[instance] = marked
        if was_free:
            self.free.remove(instance)
            self._settle(instance)

    def _settle(self, instance: InstanceThread) -> None:
        state = self._states[instance] = end(self._states[instance])
        if state is FREE:
            self.free.append(instance)
        elif state.phase is Phase.RECOVERING:
            instance.recover(self._waits.pop(instance), partial(self._recovered, instance))
        elif state.phase is Phase.GONE:
            del self._states[instance]
            self._removed.pop(instance).set_result(None)

    def _recovered(self, instance: InstanceThread) -> None:
        self._settle(instance)
        if self._states.get(instance) is FREE:
            self._available(instance)
