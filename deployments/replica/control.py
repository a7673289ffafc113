"""A replica's side of its channels: requests, and the control verbs of the manager and the ingresses."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from app.core.errors import ErrorCode, InferError
from app.core.latencies import distributions
from app.core.log import LogConfig, configure_logging
from backends.base import Backend
from deployments.replica.served_model import ServedModel
from deployments.spec import UPDATE


class ReplicaHandler:
    """Handles the frames of a `ChannelServer`, on the data-plane loop.

    Args:
        served: the model that requests go to.
        ensembles: returns the counters of the ensembles that the model's own calls ran in this process.
    """

    def __init__(self, served: ServedModel, ensembles: Callable[[], list[Any]] = list) -> None:
        self.submit = served.submit
        self._served = served
        self._ensembles = ensembles
        self._verbs: dict[str, tuple[type, Callable[[Any], Awaitable[object]]]] = {
            "log": (LogConfig, self._configure_logging),
            "statistics": (type(None), self._statistics),
            "ensembles": (type(None), self._ensemble_statistics),
            UPDATE: (bytes, self._update_instances),
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

    async def _statistics(self, _: None) -> dict[str, Any]:
        served = self._served
        return {
            "statistics": served.statistics.message().SerializeToString(),
            "failures": {reason.value: n for reason, n in served.statistics.failures.items()},
            "pending": served.scheduler.pending,
            "releases": dict(served.statistics.releases),
            "queue_age_ns": served.scheduler.queue_age_ns,
            **distributions(served.statistics.latencies, served.first_responses, served.cached is not None),
            **await self._custom_metrics(),
        }

    async def _custom_metrics(self) -> dict[str, Any]:
        backend = self._served.backend
        if type(backend).metrics is Backend.metrics:
            return {}
        # A model in a process of its own may be slow to answer.
        return {"custom": await asyncio.to_thread(backend.metrics)}

    async def _ensemble_statistics(self, _: None) -> list[Any]:
        return self._ensembles()

    async def _update_instances(self, config: bytes) -> None:
        await asyncio.to_thread(self._served.instances.update, config)
