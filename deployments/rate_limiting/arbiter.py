"""Who may execute next: the decision, without clocks, sockets or processes."""

import itertools
from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Generic, TypeVar

from app.core.config.rate_limit import Demand, Explicit, Resource, limits

K = TypeVar("K", bound=Hashable)


class _Member(Generic[K]):
    """An instance: `turn` is where it stands in line, `wished` when it asked (a counter, 0 for not)."""

    __slots__ = ("demand", "held", "key", "needs", "turn", "wished")

    def __init__(self, key: K, demand: Demand) -> None:
        self.key = key
        self.demand = demand
        self.needs = demand.needs()
        self.turn = 0
        self.wished = 0
        self.held = False


class Arbiter(Generic[K]):
    """Shares resources among instances, known by any key.

    Whoever waits stands in line by the executions it has had, each counted as many times as its priority
    says: of two that always wait, one with priority 2 gets half the turns of one with priority 1. Triton
    counts from the load on, so that a new model, or one that rested, keeps all others out until it has
    caught up; here whoever joins the line starts from where the line is.

    The first in line takes what it needs before the others. When it cannot have that yet, what it waits for
    stays out of the others' reach, so that a large demand is not starved by small ones; those who need none
    of it go on (in Triton they wait as well).

    Args:
        explicit: the counts that the operator gave; empty for the most that any instance demands.
    """

    def __init__(self, explicit: Explicit) -> None:
        self._explicit = explicit
        self._members: dict[K, _Member[K]] = {}
        self._limits: dict[Resource, int] = {}
        self._used: dict[Resource, int] = {}
        self._line: set[_Member[K]] = set()
        self._turn = 0
        self._order = itertools.count(1)

    def enrol(self, demands: Mapping[K, Demand]) -> None:
        """Add instances: all of them, or none.

        Raises:
            InferError: INVALID_ARG when one of them, or one that is here already, could not execute.
        """
        added = {key: _Member(key, demand) for key, demand in demands.items()}
        together = [member.demand for member in (*self._members.values(), *added.values())]
        self._limits = limits(together, self._explicit)
        self._members.update(added)

    def leave(self, key: K) -> None:
        """Remove an instance; what it held is free."""
        self.release(key)
        self._members.pop(key, None)
        self._limits = limits([member.demand for member in self._members.values()], self._explicit)

    def wish(self, key: K) -> None:
        """Stand in line."""
        member = self._members[key]
        if not (member.held or member.wished):
            member.wished = next(self._order)
            member.turn = max(member.turn, self._turn)
            self._line.add(member)

    def hold(self, key: K) -> None:
        """An instance executes already: it got its turn from an arbiter that is no more."""
        self._give(self._members[key])

    def release(self, key: K) -> None:
        """Give back what an instance holds, or leave the line."""
        member = self._members.get(key)
        if member is None:
            return
        self._line.discard(member)
        member.wished = 0
        if member.held:
            member.held = False
            for resource, count in member.needs.items():
                self._used[resource] -= count

    def grant(self) -> list[K]:
        """Give turns to all who can have one now."""
        granted: list[K] = []
        awaited: set[Resource] = set()
        for member in sorted(self._line, key=attrgetter("turn", "wished")):
            if awaited.isdisjoint(member.needs) and self._has(member.needs):
                self._line.discard(member)
                self._turn = max(self._turn, member.turn)
                self._give(member)
                granted.append(member.key)
            else:
                awaited.update(member.needs)
        return granted

    def _has(self, needs: Mapping[Resource, int]) -> bool:
        return all(self._used.get(each, 0) + count <= self._limits[each] for each, count in needs.items())

    def _give(self, member: _Member[K]) -> None:
        member.held, member.wished = True, 0
        member.turn += member.demand.priority
        for resource, count in member.needs.items():
            self._used[resource] = self._used.get(resource, 0) + count
