"""Supervision of an instance's worker process, which is restarted when it dies."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from app.core.errors import ErrorCode, Failure, FailureReason, InferError, internal
from app.core.tensors import SequenceId
from backends.base import Request
from backends.python.api.errors import stub_failed
from backends.python.execution.execution import Clocked
from backends.python.execution.instance import PythonInstance
from backends.python.execution.readiness import LIMIT_S
from backends.python.worker.link import LinkClosed
from backends.python.worker.process import Process, not_healthy

logger = logging.getLogger(__name__)

_STABLE_S: Final = 60.0
"""After so long a run, a crash counts as the first: the process is restarted at once."""
_LONGEST_S: Final = 30.0
_METRICS_S: Final = 1.0
_FINALIZE_S: Final = 30.0


def delay(crashes: int) -> float:
    """Return the seconds until the restart after so many crashes in a row."""
    return 0.0 if crashes <= 1 else min(_LONGEST_S, 0.5 * 2.0 ** min(crashes - 2, 16))


class Supervisor:
    """An instance that a worker process executes; has the interface of an `Execution`.

    Requests wait while the process is restarted. They are refused while the restart is delayed, which happens
    after several crashes in a row.
    """

    def __init__(
        self,
        instance: PythonInstance,
        python: Path,
        start_s: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process and initialise the model; call `changed` when the process starts or ends.

        Raises:
            InferError: INTERNAL when the process or the model cannot be started.
        """
        self._instance = instance
        self._python = python
        self._start_s = start_s
        self._on_change = changed
        self._changed = threading.Condition()
        self._process: Process | None = None
        self._starting = True
        self._closed = False
        self._metrics: list[Any] = []
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._run, name=f"{instance.name} process", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: not self._starting)
        if self._process is None and self._failure is not None:
            raise self._failure.error()

    @property
    def pid(self) -> int:
        """Return the process's id, 0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`.

        Raises:
            InferError: UNAVAILABLE when there is no process.
        """
        process = self._process
        if process is None or process.ended:
            process = self._wait_started()
        if process is None:
            failure = stub_failed(self._instance.name, not_healthy(self._instance.name))
            raise InferError(ErrorCode.UNAVAILABLE, failure.message, FailureReason.BACKEND)
        process.execute(requests, clock)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """See `Execution.finalize_sequence`; the state of sequences ends with the process."""
        process = self._process
        if process is not None and not process.ended:
            process.finalize_sequence(sequence_id)

    def is_ready(self) -> bool:
        """Whether there is a process and its model is ready."""
        process = self._process
        return process is not None and process.is_ready(LIMIT_S)

    def metrics(self) -> list[Any]:
        """Return the custom metrics: the last ones if the process is busy, none without a process."""
        process = self._process
        try:
            self._metrics = [] if process is None else process.metrics(_METRICS_S)
        except TimeoutError:
            pass
        except LinkClosed:
            self._metrics = []
        return self._metrics

    def close(self) -> None:
        """Finalize the model and end the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            process = self._process
        if process is not None:
            process.stop(_FINALIZE_S)
        self._thread.join(_FINALIZE_S)

    def _wait_started(self) -> Process | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not (self._starting or self._dying()))
            return self._process

    def _dying(self) -> bool:
        return self._process is not None and self._process.ended

    def _run(self) -> None:
        crashes = 0
        while not self._closed:
            began = time.monotonic()
            process = self._start_process()
            if process is None and crashes == 0:
                return  # the first start failed, and so does the load
            if process is not None:
                status = process.wait()
                if self._closed:
                    return
                logger.error("process of instance '%s' ended with %s", self._instance.name, status)
            crashes = 1 if time.monotonic() - began > _STABLE_S else crashes + 1
            self._wait_before_restart(delay(crashes))

    def _start_process(self) -> Process | None:
        process: Process | None = None
        try:
            process = Process(self._instance, self._python, self._start_s)
            process.begin()
        except BaseException as error:
            if process is not None:
                process.stop(_METRICS_S)
                process = None
            failed = error if isinstance(error, InferError) else internal(str(error))
            self._failure = failed.failure
            logger.error("process of instance '%s': %s", self._instance.name, error)
        with self._changed:
            closed = self._closed
            self._process = None if closed else process
            self._starting = False
            self._changed.notify_all()
        self._on_change()
        if closed and process is not None:
            process.stop(_FINALIZE_S)
        return process

    def _wait_before_restart(self, seconds: float) -> None:
        with self._changed:
            self._process = None
            self._starting = seconds == 0
            self._changed.notify_all()
            self._on_change()
            if seconds:
                logger.warning("it is restarted in %g s", seconds)
                self._changed.wait_for(lambda: self._closed, seconds)
            self._starting = True
