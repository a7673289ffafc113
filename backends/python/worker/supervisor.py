"""Supervision of an instance's worker process, which is restarted when it dies."""

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from app.core.errors import Failure, InferError, internal
from app.core.system.pauses import growing_pause
from app.core.tensors import SequenceId
from backends.base import Begun, Instance, Request
from backends.python.api.errors import stub_failed
from backends.python.execution.execution import Clocked
from backends.python.execution.readiness import LIMIT_S
from backends.python.worker.framing import LinkClosed
from backends.python.worker.process import not_healthy
from backends.python.worker.process_instance import Described, Processes, ProcessInstance

logger = logging.getLogger(__name__)

_STABLE_S: Final = 60.0
"""After so long a run, a crash counts as the first: the process is restarted at once."""
_FIRST_S: Final = 0.5
_LONGEST_S: Final = 30.0
_METRICS_S: Final = 1.0
_FINALIZE_S: Final = 30.0


def delay(crashes: int) -> float:
    """Return the seconds until the restart after so many crashes in a row."""
    return growing_pause(crashes - 1, _FIRST_S, _LONGEST_S)


class Supervisors:
    """The supervisors of a model's instances.

    Attributes:
        changed: notified when a process starts or ends.
        processes: where they get their processes from.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.processes = Processes()
        self._all: list[Supervisor] = []

    def add(self, supervisor: "Supervisor") -> None:
        """Add the supervisor of a new instance."""
        self._all.append(supervisor)

    def remove(self, supervisor: "Supervisor") -> None:
        """Remove a supervisor, if it was added."""
        if supervisor in self._all:
            self._all.remove(supervisor)

    def runs_another(self, than: "Supervisor") -> bool:
        """Whether another instance has a process."""
        return any(each.runs for each in list(self._all) if each is not than)

    def metrics(self) -> list[Any]:
        """Return the custom metrics of all processes."""
        every = list({each.pid: each for each in self._all}.values())  # one of those that share a process
        if not every:
            return []
        with ThreadPoolExecutor(len(every)) as threads:  # each may take its time
            return [family for found in threads.map(Supervisor.metrics, every) for family in found]


class Supervisor:
    """An instance that a worker process executes; has the interface of an `Execution`.

    Requests wait while the process is restarted. While the restart is delayed, which happens after several
    crashes in a row, they are refused, unless other instances execute them.
    """

    def __init__(
        self, described: Described, python: Path, start_s: float, instance: Instance, others: Supervisors
    ) -> None:
        """Start the process and initialise the model; report changes and losses to the instance.

        Raises:
            InferError: INTERNAL when the process or the model cannot be started.
        """
        self._described = described
        self._python = python
        self._start_s = start_s
        self._instance = instance
        self._others = others
        self._changed = others.changed
        self._process: ProcessInstance | None = None
        self._starting = True
        self._closed = False
        self._metrics: list[Any] = []
        self._failure: Failure | None = None
        self._thread = threading.Thread(target=self._run, name=f"{described.name} process", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: not self._starting)
        if self._process is None and self._failure is not None:
            raise self._failure.error()

    @property
    def pid(self) -> int:
        """Return the process's id, 0 while there is none."""
        process = self._process
        return 0 if process is None else process.process.pid

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        process = self._process
        return process is not None and not process.process.ended

    def execute(self, requests: Sequence[Request], clock: Clocked) -> None:
        """Execute one batch; see `Execution.execute`.

        Raises:
            InferError: UNAVAILABLE when there is no process.
        """
        process = self._process
        if process is None or process.process.ended:
            process = self._wait_started()
        if process is None:
            raise stub_failed(self._described.name, not_healthy(self._described.name)).error()
        process.execute(requests, clock)

    def begin(self, requests: Sequence[Request], clock: Clocked) -> Begun | None:
        """Begin to execute a batch; None where `execute` has to, because there is no process, say."""
        process = self._process
        if process is None or process.process.ended:
            return None
        return process.send(requests, clock)

    def finalize_sequence(self, sequence_id: SequenceId) -> None:
        """See `Execution.finalize_sequence`; the state of sequences ends with the process."""
        process = self._process
        if process is not None and not process.process.ended:
            process.finalize_sequence(sequence_id)

    def is_ready(self) -> bool:
        """Whether the model is ready, or its other instances execute while the process is restarted."""
        process = self._process
        if process is None or process.process.ended:
            return self._others.runs_another(self)
        return process.is_ready(LIMIT_S)

    def metrics(self) -> list[Any]:
        """Return the custom metrics: the last ones if the process is busy, none without a process."""
        process = self._process
        try:
            self._metrics = [] if process is None else process.process.metrics(_METRICS_S)
        except TimeoutError:
            pass
        except LinkClosed:
            self._metrics = []
        return self._metrics

    def kill(self) -> None:
        """Kill the process, which is then restarted."""
        process = self._process
        if process is not None:
            process.process.kill()

    def close(self) -> None:
        """Finalize the model and end the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            process = self._process
        if process is not None:
            process.stop(_FINALIZE_S)
        self._thread.join(_FINALIZE_S)

    def _wait_started(self) -> ProcessInstance | None:
        """Wait for the process; return None when it does not start soon and no other instance has one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.runs or not self._is_worth_waiting_for())
            return self._process

    def _is_worth_waiting_for(self) -> bool:
        ending = self._process is not None and self._process.process.ended
        return self._starting or ending or self._others.runs_another(self)

    def _lost(self) -> None:
        if self._process is not None and not self._closed:
            self._instance.lost(self._wait_started)

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
                logger.error("process of instance '%s' ended with %s", self._described.name, status)
            crashes = 1 if time.monotonic() - began > _STABLE_S else crashes + 1
            self._wait_before_restart(delay(crashes))

    def _start_process(self) -> ProcessInstance | None:
        process: ProcessInstance | None = None
        try:
            process = self._others.processes.open(self._described, self._python, self._start_s, self._lost)
            process.begin()
        except BaseException as error:
            if process is not None:
                process.stop(_METRICS_S)
                process = None
            failed = error if isinstance(error, InferError) else internal(str(error))
            self._failure = failed.failure
            logger.error("process of instance '%s': %s", self._described.name, error)
        with self._changed:
            closed = self._closed
            self._process = None if closed else process
            self._starting = False
            self._changed.notify_all()
        self._instance.readiness_changed()
        if closed and process is not None:
            process.stop(_FINALIZE_S)
        return process

    def _wait_before_restart(self, seconds: float) -> None:
        with self._changed:
            self._process = None
            self._starting = seconds == 0
            self._changed.notify_all()
            self._instance.readiness_changed()
            if seconds:
                logger.warning("it is restarted in %g s", seconds)
                self._changed.wait_for(lambda: self._closed, seconds)
            self._starting = True
