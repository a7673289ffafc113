"""A replica's side of its channels: requests, and the control verbs of the manager and the ingresses."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from app.core.cost.reports import WORK, CallUse, ReplicaWork
from app.core.errors import ErrorCode, InferError
from app.core.observability.log import LogConfig, configure_logging
from app.core.observability.statistics import CustomFamily, EnsembleReports, ReplicaReport
from app.core.residency import USE, ReplicaUse
from app.core.rollout.outcomes import COMPUTE, Executions
from app.core.sequences import END_SEQUENCES
from app.core.system.processes import processor_seconds, resident_memory
from app.core.tensors import SequenceId
from backends.base import Backend
from deployments.replica.compute import ComputeMeter
from deployments.replica.load import replica_load
from deployments.replica.served_model import ServedModel
from deployments.replica.use import UseMeter
from deployments.replica.work import WorkMeter
from deployments.spec import LOAD, UPDATE, ReplicaLoad


class ReplicaHandler:
    """Handles the frames of a `ChannelServer`, on the data-plane loop.

    Args:
        served: the model that requests go to.
        ensembles: returns the counters of the ensembles that the model's own calls ran in this process.
        node: the id of the node.
        processes: returns the ids of the replica's own processes; of none where it shares one with others.
        calls: returns the model's own calls of others since the last time.
    """

    def __init__(
        self,
        served: ServedModel,
        ensembles: Callable[[], EnsembleReports] = list,
        node: str = "",
        processes: Callable[[], Iterable[int]] = tuple,
        calls: Callable[[], list[CallUse]] = list,
    ) -> None:
        self.submit = served.accept
        self._served = served
        self._ensembles = ensembles
        self._node = node
        self._processes = processes
        self._use = UseMeter(served)
        self._compute = ComputeMeter(served.statistics)
        self._work = WorkMeter(served, calls)
        self._verbs: dict[str, tuple[Any, Callable[[Any], Awaitable[object]]]] = {
            "log": (LogConfig, self._configure_logging),
            "statistics": (type(None), self._statistics),
            "ensembles": (type(None), self._ensemble_statistics),
            UPDATE: (bytes, self._update_instances),
            LOAD: (type(None), self._load),
            USE: (type(None), self._read_use),
            COMPUTE: (type(None), self._take_executions),
            WORK: (type(None), self._read_work),
            END_SEQUENCES: (list[int | str], self._end_sequences),
        }
        """The type of the argument and the handler of each verb."""

    async def control(self, verb: str, payload: Any) -> Any:
        """Answer a CONTROL frame.

        Raises:
            InferError: UNSUPPORTED for an unknown verb, or the error of its handler.
        """
        if verb not in self._verbs:
            raise InferError(ErrorCode.UNSUPPORTED, f"unknown control verb '{verb}'")
        kind, handle = self._verbs[verb]
        return await handle(msgspec.convert(payload, kind))

    async def _configure_logging(self, settings: LogConfig) -> None:
        configure_logging(settings)

    async def _statistics(self, _: None) -> ReplicaReport:
        served = self._served
        custom = await self._custom_metrics()
        processor_s, memory = await asyncio.to_thread(self._measured)
        return msgspec.structs.replace(
            served.statistics.report(),
            pending=served.scheduler.pending,
            queue_age_ns=served.scheduler.queue_age_ns,
            expected_wait_ns=served.scheduler.expected_wait_ns,
            refusals=served.scheduler.admission.refused,
            has_cache=served.cached is not None,
            cache_failures=0 if served.cached is None else served.cached.failures,
            custom=custom,
            responses=dict(served.model.responses),
            processor_s=processor_s,
            memory=memory,
        )

    def _measured(self) -> tuple[float, int]:
        pids = tuple(self._processes())
        return processor_seconds(pids), resident_memory(pids)

    async def _custom_metrics(self) -> list[CustomFamily]:
        backend = self._served.backend
        if type(backend).metrics is Backend.metrics:
            return []
        # A model in a process of its own may be slow to answer.
        return msgspec.convert(await asyncio.to_thread(backend.metrics), list[CustomFamily])

    async def _end_sequences(self, ended: list[SequenceId]) -> None:
        for sequence_id in ended:
            self._served.scheduler.end_sequence(sequence_id)

    async def _load(self, _: None) -> ReplicaLoad:
        return await replica_load(self._served, self._node)

    async def _read_use(self, _: None) -> ReplicaUse:
        return await self._use.read()

    async def _take_executions(self, _: None) -> Executions:
        return await self._compute.take()

    async def _read_work(self, _: None) -> ReplicaWork:
        return self._work.read()

    async def _ensemble_statistics(self, _: None) -> EnsembleReports:
        return self._ensembles()

    async def _update_instances(self, config: bytes) -> None:
        await asyncio.to_thread(self._served.instances.update, config)
