"""An instance of several that executes in the replica while that is short, and in a process afterwards.

A hop to another process takes longer than a short execution. A model of which nothing is kept from one
execution to the next (`execution/statelessness.py`) may be executed anywhere, so that its instances need a
process each only when their executions are long enough to gain by running beside each other.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from app.core.errors import InferError
from backends.base import Begun, Instance, Request
from backends.python.execution.execution import Clocked, Execution
from backends.python.worker.supervisor import Supervisor

logger = logging.getLogger(__name__)

_LONG_NS: Final = 400_000
"""From here on, two executions at once gain more than the way to a process takes; measured in
`deployments/event_loop_execution/policy.py`, which has the same bound for several instances on a loop."""
_MOST: Final = 16
"""Long executions, less short ones, after which an instance moves."""


class Movable:
    """Executes here at first. Has the interface of an `Execution`.

    Args:
        execution: the instance in this process.
        instance: is told when another process executes it.
        start: starts that process, and loads the model there.
    """

    def __init__(self, execution: Execution, instance: Instance, start: Callable[[], Supervisor]) -> None:
        self.execution = execution
        self.supervisor: Supervisor | None = None
        self._instance = instance
        self._start = start
        self._long = 0
        self._moving: threading.Thread | None = None

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`."""
        if self.supervisor is not None:
            self.supervisor.execute(requests, clock)
            return
        began = time.monotonic_ns()
        self.execution.execute(requests, clock)
        if time.monotonic_ns() - began > _LONG_NS:
            self._long += 1
            if self._long >= _MOST and self._moving is None:
                self._moving = threading.Thread(target=self._move, name="move", daemon=True)
                self._moving.start()
        elif self._long:
            self._long -= 1

    def begin(self, requests: Sequence[Request], clock: Clocked) -> Begun | None:
        """Begin to execute a batch; None while it executes here."""
        return None if self.supervisor is None else self.supervisor.begin(requests, clock)

    def finalize_sequence(self, sequence_id: object) -> None:
        """Do nothing: there are no sequences."""

    def is_ready(self) -> bool:
        """Whether the model is ready."""
        return self.execution.is_ready() if self.supervisor is None else self.supervisor.is_ready()

    def close(self) -> None:
        """Unload the instance here and there."""
        if self._moving is not None:
            self._moving.join()
        if self.supervisor is not None:
            self.supervisor.close()
        self.execution.close()

    def _move(self) -> None:
        try:
            supervisor = self._start()
        except InferError as error:
            logger.warning("instance '%s' stays in its replica: %s", self._instance.name, error.message)
            return
        self._instance.elsewhere = True
        self.supervisor = supervisor
