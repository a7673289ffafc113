"""What a backend is: Triton's seven-function life cycle as a Python class.

The order of calls is Triton's (TRITONBACKEND_* in its backend API): `initialize` once in the process,
`model_initialize` once for the model version, `instance_initialize` once for each instance, then
`instance_execute` any number of times, then the three `*_finalize` in reverse. An instance is never
entered twice at a time; different instances of a model run in threads of their own.

Importing this module needs numpy and nothing else: processes with an environment of their own import it too.
"""

# ruff: noqa: B027  (the functions an author may leave out are empty, not abstract)

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from app.core.errors import invalid_arg
from app.core.tensors import InferRequest, InferResponse, SequenceId

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as mc

    from backends.signature import Signature

Reply = Callable[[InferResponse], None]


class Model:
    """A model version as its backend sees it.

    Attributes:
        config: the complete, normalised configuration.
        directory: the model's directory in the repository (holds config.pbtxt, labels, version directories).
        version_directory: `<directory>/<version>`.
        backend_config: `--backend-config` settings for this backend, name to value.
        interpreter: of the model's own Python environment; None for a model without one.
        common_file: the model.py of a Python-based backend, which executes all its models; None where each
            model has its own.
        state: whatever the backend keeps for the model.
    """

    def __init__(
        self,
        config: mc.ModelConfig,
        version: int,
        directory: Path,
        backend_config: Mapping[str, str] | None = None,
    ) -> None:
        self.name: str = config.name
        self.version = version
        self.version_text = str(version)
        self.config = config
        self.directory = directory
        self.version_directory = directory / str(version)
        self.backend_config = dict(backend_config or {})
        self.interpreter: Path | None = None
        self.common_file: Path | None = None
        self.state: Any = None

    @cached_property
    def signature(self) -> Signature:
        """The tensors of `config`, compiled when first asked for: after auto-completion."""
        from backends.signature import Signature

        return Signature(self.config)

    @property
    def file(self) -> Path:
        """The model file: `default_model_filename` inside the version directory."""
        return self.artifact("")

    def artifact(self, default: str, name: str = "") -> Path:
        """The model file: `name`, else `default_model_filename` or `default`, inside the version directory.

        The name may come from a client (a configuration override), so it may not lead out of the directory.

        Raises:
            InferError: INVALID_ARG for an absolute name, or one with "..", a backslash or a NUL.
        """
        name = name or self.config.default_model_filename or default
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            raise invalid_arg(f"model file name '{name}' escapes the directory of model '{self.name}'")
        return self.version_directory / path

    def parameter(self, key: str, default: str = "") -> str:
        """A `parameters { key value { string_value } }` entry of the configuration."""
        return self.config.parameters[key].string_value if key in self.config.parameters else default


def _nothing() -> None:
    """Stands for a function that nobody has given."""


class SecondaryDevice(NamedTuple):
    """A device beside that of an instance, such as an NVDLA: its kind ("KIND_NVDLA") and its number.

    What it is for is the backend's business (TRITONBACKEND_ModelInstanceSecondaryDeviceProperties).
    """

    kind: str
    device_id: int


class Instance:
    """One execution instance of a model version.

    Attributes:
        name: `<model>_<group>_<index>`, as Triton names them.
        kind: "CPU", "GPU" or "MODEL".
        device_id: CUDA ordinal for kind GPU, otherwise 0.
        index: position among the instances of the model version, from 0.
        passive: loaded, but never given a request.
        profiles: names of the optimization profiles of its instance group (TensorRT).
        secondary_devices: those that its group names, in that order.
        host_policy: settings of its host policy (`--host-policy`); a backend may have keys of its own there.
        state: whatever the backend keeps for the instance.
        readiness_changed: a backend may call it, on any thread, to have `instance_ready` asked at once.
        merged_inputs: where the inputs of a batch are joined, a lone request's too, when a backend has memory
            of its own for that: an array for a name, shape and dtype, free to be overwritten once
            `execute` has returned. None, as it is unless `load` sets it, makes an array for each batch.
        deferred_completion: completes the previous batch once the inputs of this execution are in place.
        compute_start_ns, compute_end_ns: a backend may set both inside `instance_execute` with
            `time.monotonic_ns()`; the statistics then split the execution into compute_input,
            compute_infer and compute_output. Left at 0, all of it counts as compute_infer.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        kind: str = "CPU",
        device_id: int = 0,
        index: int = 0,
        passive: bool = False,
        secondary_devices: Sequence[SecondaryDevice] = (),
    ) -> None:
        self.model = model
        self.name = name
        self.kind = kind
        self.device_id = device_id
        self.index = index
        self.passive = passive
        self.profiles: Sequence[str] = ()
        self.secondary_devices = tuple(secondary_devices)
        self.host_policy: Mapping[str, str] = {}
        self.state: Any = None
        self.readiness_changed: Callable[[], None] = _nothing
        self.merged_inputs: Callable[[str, tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]] | None = None
        self.deferred_completion: Callable[[], object] | None = None
        self.compute_start_ns = 0
        self.compute_end_ns = 0

    def begin_compute(self) -> None:
        """Note that the inputs are in place and the inference proper begins."""
        self.compute_start_ns = time.monotonic_ns()
        if self.deferred_completion is not None:
            self.run_deferred()

    def run_deferred(self) -> None:
        """Complete the previous batch, if that was deferred."""
        if self.deferred_completion is not None:
            deferred_completion, self.deferred_completion = self.deferred_completion, None
            deferred_completion()


class Request:
    """A request in a backend's hands.

    It was validated against the model's configuration. The backend owes it exactly one response with
    `final=True`; a decoupled model may send others before. `reply` may be called from any thread.

    Attributes:
        infer: what the client asked.
        answered: the final response was sent.
        detached: set by a backend that answers after `instance_execute` returned, from a thread of its own.
        rescheduled: set by a backend that wants the request executed again instead of answered
            (Triton's TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, for iterative sequences).
        nested: calls to other models and reported activities, kept by the server; None until there is one.
    """

    __slots__ = ("_is_cancelled", "_reply", "answered", "detached", "infer", "nested", "rescheduled")

    def __init__(self, infer: InferRequest, reply: Reply, is_cancelled: Callable[[], bool]) -> None:
        self.infer = infer
        self.answered = False
        self.detached = False
        self.rescheduled = False
        self.nested: Any = None
        self._reply = reply
        self._is_cancelled = is_cancelled

    @property
    def unanswered(self) -> bool:
        """Whether no response is to be expected, after `instance_execute` has returned."""
        return not (self.answered or self.detached or self.rescheduled)

    def is_cancelled(self) -> bool:
        """Whether the client has gone or asked to cancel; the answer may change at any time."""
        return self._is_cancelled()

    def report_activity(self, name: str) -> None:
        """Note in the trace of the request that something happens now; nothing unless it is traced.

        In mode opentelemetry, `<span>_START` begins a span of the model's and `<span>_END` ends it, as with
        Triton's TRITONSERVER_InferenceTraceReportActivity.
        """

    def reply(self, response: InferResponse) -> None:
        """Send a response; after the final one nothing more is sent.

        Raises:
            RuntimeError: a response after the final one.
        """
        if self.answered:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if response.final:
            self.answered = True
        self._reply(response)


class Backend(ABC):
    """The seven functions, and what a backend can say of a model file before it is loaded.

    Any method may raise `InferError`; other exceptions are reported as INTERNAL with their text.
    Only `instance_execute` must be written.

    Attributes:
        begins_compute: each execution calls `Instance.begin_compute`.
    """

    begins_compute = False

    def initialize(self, config: Mapping[str, str]) -> None:
        """Called once in a process, before any model, with the backend's `--backend-config` settings."""

    def finalize(self) -> None:
        """Called last."""

    def model_initialize(self, model: Model) -> None:
        """Prepare what all instances share; may set `model.state`."""

    def model_finalize(self, model: Model) -> None:
        """Undo `model_initialize`."""

    def instance_initialize(self, instance: Instance) -> None:
        """Load the model for one instance; expensive work belongs here; may set `instance.state`."""

    def instance_finalize(self, instance: Instance) -> None:
        """Undo `instance_initialize`."""

    @abstractmethod
    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        """Execute one batch and reply to every request.

        What is raised here, or a request left `unanswered` by a model that is not decoupled, fails the
        unanswered requests of this batch and no other.
        """

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        """A sequence is over, so what is kept for it can go; called between executions, in their thread.

        By END, after it rested for too long, or because one of its requests was cancelled or late. One of the
        same id that follows starts after this call. (Triton's backend API has no such function.)
        """

    def instance_ready(self, instance: Instance) -> bool:
        """Whether the instance could execute now; False makes the model version not ready."""
        return True

    def metrics(self) -> list[Any]:
        """Custom metrics of the models of this process, as `backends.python.api.metrics.snapshot` gives them.

        Called when somebody reads `/metrics`, on a thread of its own.
        """
        return []

    def readiness_varies(self, instance: Instance) -> bool:
        """Whether `instance_ready` may ever say False; only then is it asked, now and then."""
        return type(self).instance_ready is not Backend.instance_ready

    def runs_on_event_loop(self, instance: Instance) -> bool:
        """Whether the instance may execute on the replica's event loop while its executions are short.

        It must have no thread-local state, never block and call nothing of the server, except as
        `may_call_models` says. Called once, after `instance_initialize`; see docs/event_loop_execution.md.
        """
        return False

    def may_call_models(self, instance: Instance) -> bool:
        """Whether an execution on the event loop may wait for responses of other models (`Calls.ask`).

        Called once, if `runs_on_event_loop` returned True.
        """
        return False

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        """Return `model.config` completed by what the model file itself says.

        May set max_batch_size, input, output, a scheduler when none is set, and the decoupled policy,
        and nothing else (Triton's rule). Called before `model_initialize`, unless
        `--disable-auto-complete-config`.

        Raises:
            InferError: INVALID_ARG when the file contradicts the configuration.
        """
        return model.config
