"""Base of backends whose instances worker processes execute."""

from typing import Any

from app.core.errors import invalid_arg
from app.core.tensors import SequenceId
from backends.base import Backend, Instance, Model
from backends.parameters import boolean
from backends.python.worker.process_instance import Described, Processes
from backends.python.worker.supervisor import Supervisor, Supervisors

COMPLETED_S = 5.0
SHARED = "INSTANCES_SHARE_PROCESS"


class WorkerBackend(Backend):
    """Starts a process for each instance, or one for all, of the model's interpreter.

    Attributes:
        shares_process: whether one process has all instances, unless the model's parameter
            INSTANCES_SHARE_PROCESS says otherwise: right where a framework releases the GIL.
    """

    shares_process = False

    def __init__(self) -> None:
        self._supervisors = Supervisors()

    def model_initialize(self, model: Model) -> None:
        self._supervisors.processes.shared = boolean(model, SHARED, self.shares_process)

    def supervise(self, instance: Instance, described: Described) -> None:
        """Have a process execute an instance; `instance.state` is then its supervisor.

        Raises:
            InferError: the process or the model cannot be started.
        """
        instance.state = self.start_supervisor(instance, described)

    def start_supervisor(self, instance: Instance, described: Described) -> Supervisor:
        """Start a process that can execute an instance.

        Raises:
            InferError: the process or the model cannot be started.
        """
        python = instance.model.interpreter
        assert python is not None
        start_s = start_seconds(instance.model)
        supervisor = Supervisor(described, python, start_s, instance, self._supervisors)
        self._supervisors.add(supervisor)
        return supervisor

    def instance_finalize(self, instance: Instance) -> None:
        state, instance.state = instance.state, None
        self._supervisors.remove(getattr(state, "supervisor", state))
        if state is not None:
            state.close()
            self._supervisors.remove(getattr(state, "supervisor", state))  # of one that moved meanwhile

    def instance_ready(self, instance: Instance) -> bool:
        return instance.state is not None and instance.state.is_ready()

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        if instance.state is not None:
            instance.state.finalize_sequence(sequence_id)

    def interrupt(self, instance: Instance) -> bool:
        supervisor = getattr(instance.state, "supervisor", instance.state)
        if isinstance(supervisor, Supervisor):
            supervisor.kill()
        return isinstance(supervisor, Supervisor)

    def metrics(self) -> list[Any]:
        return self._supervisors.metrics()


def completed_there(model: Model, described: Described) -> Any:
    """Return what the description's module completes, in a process of the model's interpreter."""
    assert model.interpreter is not None
    process = Processes().open(described, model.interpreter, start_seconds(model))
    try:
        return process.complete()
    finally:
        process.stop(COMPLETED_S)


def start_seconds(model: Model) -> float:
    """Return how long a process may take to start.

    Raises:
        InferError: INVALID_ARG for a setting that is no number.
    """
    key = "stub-timeout-seconds"
    value = model.backend_config.get(key, "30")
    try:
        return float(value)
    except ValueError:
        raise invalid_arg(f"--backend-config=python,{key} must be a number, got '{value}'") from None
