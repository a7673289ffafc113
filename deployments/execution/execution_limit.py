"""The time limit of executions: what takes longer fails, and ends with its process if need be."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import ErrorCode, Failure, FailureReason, invalid_arg
from backends.base import Backend
from deployments.execution.instance_thread import InstanceThread

logger = logging.getLogger(__name__)

PARAMETER: Final = "max_execution_secs"
_LOOKS: Final = 10
"""Looks within the time limit, by which it may be exceeded by a tenth."""


def seconds_allowed(config: mc.ModelConfig, default: float) -> float:
    """Return the limit of a model, from its parameter or the server's default; 0 for none.

    Raises:
        InferError: INVALID_ARG for a parameter that is no number of seconds.
    """
    text = config.parameters[PARAMETER].string_value if PARAMETER in config.parameters else ""
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise invalid_arg(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a number of seconds, got '{text}'"
        )
    return seconds


class ExecutionLimit:
    """Ends executions of one model that take too long. Runs on the data-plane loop.

    A thread cannot be ended: unless the backend ends the execution by itself, the replica has to be replaced.

    Args:
        seconds: the limit.
        threads: returns the present instances.
        on_stuck: called when the replica has to be replaced.
        clock: as `time.monotonic_ns`, which batches are stamped with.

    Attributes:
        stuck: why the replica has to be replaced; "" if it has not.
    """

    def __init__(
        self,
        model: str,
        seconds: float,
        backend: Backend,
        threads: Callable[[], Iterable[InstanceThread]],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._model = model
        self._seconds = seconds
        self._backend = backend
        self._threads = threads
        self._clock = clock
        self.stuck = ""

    async def watch(self, on_stuck: Callable[[], object]) -> None:
        """Look at the executions until one has made the replica useless."""
        while not self.stuck:
            await asyncio.sleep(self._seconds / _LOOKS)
            self.look()
        on_stuck()

    def look(self) -> None:
        """End the executions that have taken too long."""
        for thread in self._threads():
            batch = thread.executing
            if batch is None or not batch.start_ns or batch.end_ns:
                continue
            taken = (self._clock() - batch.start_ns) / 1e9
            if taken > self._seconds:
                text = self._text(thread.instance.name, taken)
                logger.error("%s", text)
                for request in batch.requests:
                    request.fail(Failure(ErrorCode.UNAVAILABLE, text, FailureReason.BACKEND))
                if not self._backend.interrupt(thread.instance):
                    self.stuck = text

    def _text(self, instance: str, taken: float) -> str:
        return (
            f"model '{self._model}': instance '{instance}' has executed for {taken:.1f} s, more than the"
            f" {self._seconds:g} s of {PARAMETER}"
        )
