"""What one node consumes: what is measured of its processes, and what its replicas have done."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from app.core.cost.amounts import Consumption
from app.core.cost.reports import NodeUse, ReplicaWork, VersionUse
from app.core.system.cpus import available_cpus
from app.core.system.processes import total_memory
from app.cost.node import GroupKey, NodeMeter
from app.cost.reserved import reserved_bytes, reserved_cores
from app.cost.roles import INGRESS, Role
from app.routing.table import VersionEntry

_GIB: Final = 1 << 30

Works = Mapping[str, Sequence[ReplicaWork]]
"""What the replicas of applications have said."""


class Served(NamedTuple):
    """A version with replicas on this node.

    Attributes:
        entry: of the routing table.
        replicas: how many.
    """

    entry: VersionEntry
    replicas: int


class NodeWatch:
    """Makes one `NodeUse` after the other.

    Args:
        node: its id.
        meter: measures the processes.
        served: returns the versions with replicas here, by application.
        ask: asks the replicas of applications for their `ReplicaWork`.
        shared: the models are in the process of the fronts: it is divided by how long they execute.
    """

    def __init__(
        self,
        node: str,
        meter: NodeMeter,
        served: Callable[[], Mapping[str, Served]],
        ask: Callable[[Collection[str]], Awaitable[Works]],
        shared: bool = False,
    ) -> None:
        self._node, self._meter, self._served, self._ask = node, meter, served, ask
        self._shared = shared
        self._begun = False
        self._done: dict[str, dict[str, ReplicaWork]] = {}  # by application, then replica
        self._cores, self._gib = available_cpus(), total_memory() / _GIB

    async def read(self) -> NodeUse:
        """Return what was consumed since the last time; nothing the first time, which is where it begins."""
        reading = await asyncio.to_thread(self._meter.read)
        served = self._served()
        models, overhead = _sorted(reading.groups, served)
        works = await self._ask(self._to_ask({name for name, gpu in models}, served))
        uses = [
            self._work(application, each, works.get(application), reading.seconds)
            for application, each in served.items()
        ]
        if self._shared:
            here = works.keys() - {application for application, _ in models}  # others have processes
            divide(overhead, models, {name: self._computed(name, works[name]) for name in here})
        self._remember(works, served)
        uses += [_use(application, gpu, amount, served) for (application, gpu), amount in models.items()]
        return NodeUse(
            self._node,
            [use for use in uses if use.consumed != Consumption() or use.in_flight is not None],
            overhead,
            reading.cpu_seconds,
            self._cores * reading.seconds,
            self._gib * reading.seconds,
        )

    def _to_ask(self, working: Collection[str], served: Mapping[str, Served]) -> Collection[str]:
        """Return the applications that may have done something: an idle replica is left in peace."""
        if self._shared or not self._begun:
            return served.keys()
        busy = {name for name, found in self._done.items() if any(work.in_flight for work in found.values())}
        return served.keys() & (busy | {*working})

    def _work(
        self, application: str, served: Served, works: Sequence[ReplicaWork] | None, seconds: float
    ) -> VersionUse:
        """Return what was done, and what is kept for it."""
        entry, replicas = served
        kept = Consumption(
            reserved_core_seconds=reserved_cores(entry.model_config, self._cores) * replicas * seconds,
            reserved_gib_seconds=reserved_bytes(entry.model_config) / _GIB * replicas * seconds,
        )
        use = VersionUse(entry.name, entry.version, "", kept)
        if works is None:
            return use
        before = [(self._before(application, work), work) for work in works]
        use.requests = sum(work.requests - old.requests for old, work in before)
        use.rows = sum(work.rows - old.rows for old, work in before)
        use.in_flight = sum(work.in_flight for work in works)
        use.calls = [call for work in works for call in work.calls]
        return use

    def _before(self, application: str, work: ReplicaWork) -> ReplicaWork:
        """Return what a replica had done the last time; what it had at the beginning is not counted."""
        known = self._done.get(application, {}).get(work.replica)
        return known or (ReplicaWork(work.replica) if self._begun else work)

    def _computed(self, application: str, works: Sequence[ReplicaWork]) -> float:
        return sum(work.compute_s - self._before(application, work).compute_s for work in works)

    def _remember(self, works: Works, served: Mapping[str, Served]) -> None:
        new = {name: {work.replica: work for work in found} for name, found in works.items()}
        self._done = {name: found for name, found in {**self._done, **new}.items() if name in served}
        self._begun = True


_Models = dict[GroupKey, Consumption]
"""What was consumed by application and kind of GPU."""


def _sorted(
    groups: Mapping[GroupKey, Consumption], served: Mapping[str, Served]
) -> tuple[_Models, dict[str, Consumption]]:
    """Return what models have consumed, and what others have, by kind of process."""
    models, overhead = _Models(), dict[str, Consumption]()
    for (group, gpu), amount in groups.items():
        role = Role.of_group(group)
        if role.application:
            key = _known(role.application, served), gpu
            models[key] = models.get(key, Consumption()) + amount
        else:
            overhead[role.kind] = overhead.get(role.kind, Consumption()) + amount
    return models, overhead


def _known(application: str, served: Mapping[str, Served]) -> str:
    """Return the application that a title means, which may have been cut off, or name the model alone."""
    if application in served:
        return application
    alike = [name for name, each in served.items() if each.entry.model == application]
    return (alike or [name for name in served if name.startswith(application)] or [application])[0]


def _use(application: str, gpu: str, amount: Consumption, served: Mapping[str, Served]) -> VersionUse:
    """Return what an application has consumed, also one that is not served yet, or not any more."""
    if application in served:
        entry = served[application].entry
        return VersionUse(entry.name, entry.version, gpu, amount)
    model, _, version = application.partition("@")[0].partition("~")[0].rpartition(":")
    return VersionUse(model or application, int(version) if version.isdecimal() else 0, gpu, amount)


def divide(overhead: dict[str, Consumption], models: _Models, computed: Mapping[str, float]) -> None:
    """Divide what the process of the fronts has consumed: to models, by the seconds that they have executed.

    Threads that execute at once, and some that do not compute, may have more seconds than the process has.
    """
    own = overhead.get(INGRESS, Consumption())
    total = sum(computed.values())
    if not own.cpu_seconds or total <= 0:
        return
    most = min(total, own.cpu_seconds)
    for application, seconds in computed.items():
        cpu_s = most * seconds / total
        energy = None if own.energy_joules is None else own.energy_joules * cpu_s / own.cpu_seconds
        part = Consumption(cpu_seconds=cpu_s, energy_joules=energy)
        models[application, ""] = models.get((application, ""), Consumption()) + part
    energy = None if own.energy_joules is None else own.energy_joules * (1 - most / own.cpu_seconds)
    cpu_s = own.cpu_seconds - most
    overhead[INGRESS] = msgspec.structs.replace(own, cpu_seconds=cpu_s, energy_joules=energy)
