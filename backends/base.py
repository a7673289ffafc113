"""The interface of backends: Triton's seven-function life cycle as a Python class.

The order of calls is Triton's (TRITONBACKEND_* in its backend API): `initialize` once in the process,
`model_initialize` once for the model version, `instance_initialize` once for each instance, then
`instance_execute` any number of times, then the three `*_finalize` in reverse. An instance executes one
batch at a time; different instances of a model run in threads of their own.

This module imports numpy and no other package: the worker processes of Python models with an environment of
their own import it too.
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
from app.core.inference import Sink
from app.core.tensors import InferRequest, InferResponse, SequenceId, Tensor

if TYPE_CHECKING:
    from socket import socket

    from tritonclient.grpc import model_config_pb2 as mc

    from app.core.observability.statistics import ResponseDurations
    from backends.signature import Signature

DeliverAll = Callable[[Sequence["Request"], Sequence[InferResponse]], None]


class Model:
    """A model version as its backend sees it.

    Attributes:
        config: the complete, normalised configuration.
        directory: the model's directory in the repository (holds config.pbtxt, labels, version directories).
        version_directory: `<directory>/<version>`.
        backend_config: `--backend-config` settings for this backend, name to value.
        interpreter: the interpreter of the processes that execute the instances of a Python model: that of
            its own environment, or the server's for several instances; None if its only one executes here.
        common_file: the model.py of a Python-based backend, which executes all its models; None where each
            model has its own.
        state: set and used by the backend alone.
        responses: the times that the backend has reported of single responses, by their number.
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
        self.responses: dict[int, ResponseDurations] = {}

    @cached_property
    def signature(self) -> Signature:
        """The tensors of `config`; compiled at the first access, so only after auto-completion."""
        from backends.signature import Signature

        return Signature(self.config)

    @property
    def file(self) -> Path:
        """The path of `default_model_filename` inside the version directory."""
        return self.artifact("")

    def artifact(self, default: str, name: str = "") -> Path:
        """Return the path of `name`, else `default_model_filename`, else `default`, in the version directory.

        The name may come from a client (a configuration override): paths out of the directory are refused.

        Raises:
            InferError: INVALID_ARG for an absolute name, or one with "..", a backslash or a NUL.
        """
        name = name or self.config.default_model_filename or default
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
            raise invalid_arg(f"model file name '{name}' escapes the directory of model '{self.name}'")
        return self.version_directory / path

    def parameter(self, key: str, default: str = "") -> str:
        """Return an entry `parameters { key value { string_value } }` of the configuration."""
        return self.config.parameters[key].string_value if key in self.config.parameters else default


def _ignore(*_: object) -> None:
    """Do nothing."""


class SecondaryDevice(NamedTuple):
    """An additional device of an instance, such as an NVDLA: its kind ("KIND_NVDLA") and its number.

    Its use is up to the backend (TRITONBACKEND_ModelInstanceSecondaryDeviceProperties).
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
        passive: loaded, but receives no requests.
        profiles: names of the optimization profiles of its instance group (TensorRT).
        secondary_devices: the secondary devices of its instance group, in that order.
        host_policy: settings of its host policy (`--host-policy`), among them keys of the backend's own.
        state: set and used by the backend alone.
        elsewhere: set by a backend when another process executes it from now on.
        readiness_changed: called by a backend, on any thread, to have `instance_ready` called at once.
        lost: called by a backend, on any thread, when the instance has lost what it knew of its sequences
            and cannot execute for now; the argument waits, on the instance's thread, until it can.
        merged_inputs: set by `load` to a function of (name, shape, dtype) that returns the array into which
            an input is joined, also of a single request; it is overwritten by the next batch. None allocates
            an array for each batch.
        answer: set by `load` to a function that executes a lone request with tensors as the client sends them
            and returns all its outputs; it returns None for a request that `execute` has to execute.
        deferred_completion: completes the previous batch once the inputs of this execution are in place.
        deliver_all: delivers the final response of each of several requests; costs less than their `deliver`.
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
        self.elsewhere = False
        self.readiness_changed: Callable[[], None] = _ignore
        self.lost: Callable[[Callable[[], object]], None] = _ignore
        self.merged_inputs: Callable[[str, tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]] | None = None
        self.answer: Callable[[Sequence[Tensor]], tuple[Tensor, ...] | None] | None = None
        self.deferred_completion: Callable[[], object] | None = None
        self.deliver_all: DeliverAll = deliver_each
        self.compute_start_ns = 0
        self.compute_end_ns = 0

    def begin_compute(self) -> None:
        """Record that the inputs are in place and inference begins."""
        self.compute_start_ns = time.monotonic_ns()
        if self.deferred_completion is not None:
            self.run_deferred()

    def run_deferred(self) -> None:
        """Complete the previous batch, if that was deferred."""
        if self.deferred_completion is not None:
            deferred_completion, self.deferred_completion = self.deferred_completion, None
            deferred_completion()


class Request:
    """A request that a backend executes.

    It was validated against the model's configuration. The backend must send exactly one response with
    `final=True`; a decoupled model may send others before. `deliver` may be called from any thread.

    Attributes:
        infer: the request of the client.
        answered: the final response was sent.
        detached: set by a backend that delivers after `instance_execute` returned, on a thread of its own.
        rescheduled: set by a backend to have the request executed again instead of a final response
            (Triton's TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, for iterative sequences).
        activity: calls to other models and reported activities, kept by the server; None until there is one.
    """

    __slots__ = ("_is_cancelled", "_sink", "activity", "answered", "detached", "infer", "rescheduled")

    def __init__(self, infer: InferRequest, sink: Sink, is_cancelled: Callable[[], bool]) -> None:
        self.infer = infer
        self.answered = False
        self.detached = False
        self.rescheduled = False
        self.activity: Any = None
        self._sink = sink
        self._is_cancelled = is_cancelled

    @property
    def unanswered(self) -> bool:
        """Whether the backend neither delivered nor will, once `instance_execute` has returned."""
        return not (self.answered or self.detached or self.rescheduled)

    def is_cancelled(self) -> bool:
        """Whether the client cancelled or disconnected; may become True at any time."""
        return self._is_cancelled()

    def report_activity(self, name: str, time_ns: int = 0) -> None:
        """Add an activity to the request's trace; does nothing if it is not traced.

        `time_ns` is that of `time.monotonic_ns`; 0 for now.

        In mode opentelemetry, `<span>_START` begins a span and `<span>_END` ends it, as with Triton's
        TRITONSERVER_InferenceTraceReportActivity.
        """

    def deliver(self, response: InferResponse) -> None:
        """Deliver a response; the one with `final=True` is the last.

        Raises:
            RuntimeError: a response after the final one.
        """
        if self.answered:
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if response.final:
            self.answered = True
        self._sink(response)


def deliver_each(requests: Sequence[Request], responses: Sequence[InferResponse]) -> None:
    """Deliver the final response of each request."""
    for request, response in zip(requests, responses, strict=True):
        request.deliver(response)


class Begun(ABC):
    """An execution that another process does, which `Backend.instance_begin` has begun."""

    @property
    @abstractmethod
    def source(self) -> object:
        """What its end comes from: the same object for all executions of one process."""

    @abstractmethod
    def open_source(self) -> socket:
        """Return a socket of the caller's that is readable when the end may have come."""

    @abstractmethod
    def has_ended(self) -> bool:
        """Whether it has ended; does not wait for it.

        Raises:
            ConnectionError: the process has ended.
        """

    @abstractmethod
    def finish(self) -> None:
        """Deliver the responses, as `Backend.instance_execute` does; waits if the process has ended."""


class Backend(ABC):
    """Base class of backends: the seven functions, and completion of a model's configuration.

    Any method may raise `InferError`; other exceptions are reported as INTERNAL with their text.
    Only `instance_execute` is required.

    Attributes:
        begins_compute: whether each execution calls `Instance.begin_compute`.
    """

    begins_compute = False

    def initialize(self, config: Mapping[str, str]) -> None:
        """Prepare the process; called once, before any model, with the `--backend-config` settings."""

    def finalize(self) -> None:
        """Undo `initialize`."""

    def model_initialize(self, model: Model) -> None:
        """Prepare state that all instances share; may set `model.state`."""

    def model_finalize(self, model: Model) -> None:
        """Undo `model_initialize`."""

    def instance_initialize(self, instance: Instance) -> None:
        """Load the model for one instance, on its thread; may set `instance.state`."""

    def instance_finalize(self, instance: Instance) -> None:
        """Undo `instance_initialize`."""

    @abstractmethod
    def instance_execute(self, instance: Instance, requests: Sequence[Request]) -> None:
        """Execute one batch and deliver the responses of every request.

        An exception fails the unanswered requests of this batch. A request that a model leaves `unanswered`
        fails too, unless the model is decoupled.
        """

    def instance_begin(self, instance: Instance, requests: Sequence[Request]) -> Begun | None:
        """Begin to execute a batch in another process, without waiting for anything.

        Called on the event loop. None has the batch executed by `instance_execute`, on the instance's thread;
        so has an exception.
        """
        return None

    def interrupt(self, instance: Instance) -> bool:
        """End the execution of an instance from another thread; return whether that is possible.

        Called for executions that exceed their time limit; their requests have failed. The default cannot.
        """
        return False

    def sequence_finalize(self, instance: Instance, sequence_id: SequenceId) -> None:
        """Drop the state of a sequence that ended; called between executions, on their thread.

        Called after END, after the idle timeout, and when a request of the sequence was cancelled or expired.
        A new sequence of the same id starts after this call. (Triton's backend API has no such function.)
        """

    def instance_ready(self, instance: Instance) -> bool:
        """Whether the instance could execute now; False makes the model version not ready."""
        return True

    def metrics(self) -> list[Any]:
        """Return the custom metrics of this process in the form of `backends.python.api.metrics.snapshot`.

        Called for each read of `/metrics`, on a thread of its own.
        """
        return []

    def readiness_varies(self, instance: Instance) -> bool:
        """Whether `instance_ready` may ever return False; only then is it called periodically."""
        return type(self).instance_ready is not Backend.instance_ready

    def runs_on_event_loop(self, instance: Instance) -> bool:
        """Whether the instance may execute on the replica's event loop while its executions are short.

        It must have no thread-local state, never block and call nothing of the server, except as
        `may_call_models` says. Called once, after `instance_initialize`; see docs/develop/event_loop.md.
        """
        return False

    def may_call_models(self, instance: Instance) -> bool:
        """Whether an execution on the event loop may wait for other models, in `Calls.send_and_wait`.

        Called once, if `runs_on_event_loop` returned True.
        """
        return False

    @classmethod
    def preferred_groups(cls, config: Mapping[str, str], auto_complete: bool) -> list[mc.ModelInstanceGroup]:
        """Return the instance groups that complete those of a model (Triton's preferred instance groups).

        Called first, with the `--backend-config` settings, and whether `auto_complete` will be called.
        """
        return []

    @classmethod
    def auto_complete(cls, model: Model) -> mc.ModelConfig:
        """Return `model.config` completed from the model file.

        May set max_batch_size, input, output, a scheduler when none is set, and the decoupled policy,
        and nothing else (Triton's rule). Called before `model_initialize`, unless the server runs with
        `--disable-auto-complete-config`.

        Raises:
            InferError: INVALID_ARG when the file contradicts the configuration.
        """
        return model.config

    @classmethod
    def inspect(cls, model: Model) -> bool:
        """Check a model's files without executing code of them; return whether its load executes none.

        For `nereid check`, which loads the model then. Raises `InferError` as a load does.
        """
        return False
