"""Decides which instances may execute, without clocks, sockets or processes."""

import itertools
from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Generic, TypeVar

from app.core.config.rate_limit import Demand, Resource, ResourceCounts, resource_limits

K = TypeVar("K", bound=Hashable)


class _Member(Generic[K]):
    """An instance.

    Attributes:
        rank: its executions, each weighted by its priority; the lowest in the queue is first.
        requested: when it requested a permit (a counter), 0 without a request; it breaks ties.
        held: whether it has a permit.
    """

    __slots__ = ("demand", "held", "key", "needs", "rank", "requested")

    def __init__(self, key: K, demand: Demand) -> None:
        self.key = key
        self.demand = demand
        self.needs = demand.by_resource()
        self.rank = 0
        self.requested = 0
        self.held = False


class Arbiter(Generic[K]):
    """Shares resources among instances, which are identified by any key.

    The queue is ordered by the executions of each instance, weighted by its priority: of two instances that
    always wait, one with priority 2 gets half the permits of one with priority 1. Triton counts from the load
    on, so that a new or idle model blocks all others until it has caught up; here an instance that joins the
    queue starts at the rank of the last permit.

    The first in the queue gets its resources before the others. Resources that it still waits for are
    reserved, so that small demands do not starve a large one; instances that need none of them are not
    blocked (in Triton they are).

    Args:
        explicit: the operator's counts of resources; empty for the largest demand of any instance.
    """

    def __init__(self, explicit: ResourceCounts) -> None:
        self._explicit = explicit
        self._members: dict[K, _Member[K]] = {}
        self._limits: dict[Resource, int] = {}
        self._used: dict[Resource, int] = {}
        self._queue: set[_Member[K]] = set()
        self._rank = 0
        self._order = itertools.count(1)

    def register(self, demands: Mapping[K, Demand]) -> None:
        """Add instances: all of them, or none.

        Raises:
            InferError: INVALID_ARG when one of them, or a present one, could never execute.
        """
        added = {key: _Member(key, demand) for key, demand in demands.items()}
        together = [member.demand for member in (*self._members.values(), *added.values())]
        self._limits = resource_limits(together, self._explicit)
        self._members.update(added)

    def unregister(self, key: K) -> None:
        """Remove an instance and free its resources."""
        self.release(key)
        self._members.pop(key, None)
        self._limits = resource_limits([member.demand for member in self._members.values()], self._explicit)

    def request(self, key: K) -> None:
        """Queue an instance for a permit."""
        member = self._members[key]
        if not (member.held or member.requested):
            member.requested = next(self._order)
            member.rank = max(member.rank, self._rank)
            self._queue.add(member)

    def restore(self, key: K) -> None:
        """Record the permit of an instance that executes already, granted by an arbiter that ended."""
        self._give(self._members[key])

    def release(self, key: K) -> None:
        """Free the resources of an instance, or withdraw its request."""
        member = self._members.get(key)
        if member is None:
            return
        self._queue.discard(member)
        member.requested = 0
        if member.held:
            member.held = False
            for resource, count in member.needs.items():
                self._used[resource] -= count

    def grant(self) -> list[K]:
        """Give permits to all queued instances that can have one now; return them."""
        granted: list[K] = []
        reserved: set[Resource] = set()
        for member in sorted(self._queue, key=attrgetter("rank", "requested")):
            if reserved.isdisjoint(member.needs) and self._available(member.needs):
                self._queue.discard(member)
                self._rank = max(self._rank, member.rank)
                self._give(member)
                granted.append(member.key)
            else:
                reserved.update(member.needs)
        return granted

    def _available(self, needs: Mapping[Resource, int]) -> bool:
        return all(self._used.get(each, 0) + count <= self._limits[each] for each, count in needs.items())

    def _give(self, member: _Member[K]) -> None:
        member.held, member.requested = True, 0
        member.rank += member.demand.priority
        for resource, count in member.needs.items():
            self._used[resource] = self._used.get(resource, 0) + count
