"""Reads from the replicas of both versions of a rollout how long their executions take."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, reduce
from typing import Final

from app.core.rollout.outcomes import COMPUTE, Executions, Outcomes, VersionOutcomes, joined
from app.routing.pool import ReplicaPool
from app.routing.pools import Pools
from app.transport.channel.survey import ask
from deployments.rollout.states.record import Record
from deployments.spec import ModelSpec

_ANSWER_S: Final = 0.5


class ExecutionReader:
    """Asks replicas while a rollout is on.

    Args:
        served: returns the specs of the deployed versions, by application.
        open_pools: makes what opens channels to replicas; called for the first rollout.
    """

    def __init__(
        self, served: Callable[[], Mapping[str, ModelSpec]], open_pools: Callable[[], Pools]
    ) -> None:
        self._served = served
        self._open_pools = open_pools
        self._pools: dict[str, ReplicaPool] = {}

    async def read(self, record: Record) -> Outcomes:
        """Return the executions of both versions since the last time, as outcomes without requests."""
        status = record.status
        stable, candidate = await asyncio.gather(
            self._read(record.name, status.stable), self._read(record.name, status.candidate)
        )
        return Outcomes(VersionOutcomes(executions=stable), VersionOutcomes(executions=candidate))

    def follow(self, names: Collection[str]) -> None:
        """Close the channels to models other than these, and to versions that are gone."""
        served = self._served()
        for application in list(self._pools):
            if application not in served or served[application].identifier not in names:
                self._channels.close_control_pool(application)
                del self._pools[application]

    async def _read(self, name: str, version: int) -> Executions:
        served = self._served().items()
        pools = [self._pool(spec) for _, spec in served if (spec.identifier, spec.version) == (name, version)]
        channels = [channel for pool in pools for channel in pool.channels]
        answers = await ask(channels, COMPUTE, Executions, _ANSWER_S)
        return reduce(joined, (executions for _, executions in answers), {})

    def _pool(self, spec: ModelSpec) -> ReplicaPool:
        pool = self._pools.get(spec.application)
        if pool is None:
            pool = self._channels.open_control_pool(spec.name, spec.application)
            self._pools[spec.application] = pool
        return pool

    @cached_property
    def _channels(self) -> Pools:
        return self._open_pools()
