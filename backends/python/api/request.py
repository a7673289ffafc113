"""`pb_utils.InferenceRequest`: requests that a model executes, and requests that it sends."""

import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final

from app.core.tensors import TENSORS_TRACE, UNNAMED_TRACE, ParameterValue
from backends.base import Request
from backends.python.api import server_api
from backends.python.api.errors import TritonModelException
from backends.python.api.parameters import checked
from backends.python.api.response import Encoder, InferenceResponseSender
from backends.python.api.tensor import Tensor, received_tensor
from backends.python.api.text import as_text

SEQUENCE_START: Final = 1
SEQUENCE_END: Final = 2
RELEASE_ALL: Final = 1
RELEASE_RESCHEDULE: Final = 2
MEMORY_CPU: Final = 0
MEMORY_GPU: Final = 2
NO_PARAMETERS: Final = "{}"


class InferenceTrace:
    """The trace of a request; only the OpenTelemetry mode has a context to propagate."""

    __slots__ = ("_traceparent",)

    def __init__(self, traceparent: str = "") -> None:
        """Set the `InferRequest.trace` of a request; called by the server."""
        self._traceparent = traceparent

    def get_context(self) -> str | None:
        """Return the W3C trace context as JSON, `{"traceparent": "00-..."}`, or None."""
        known = self._traceparent not in ("", UNNAMED_TRACE, TENSORS_TRACE)
        return json.dumps({"traceparent": self._traceparent}) if known else None


class PreferredMemory:
    """Preferred memory of a called model's outputs."""

    __slots__ = ("device_id", "memory_type")

    def __init__(self, preferred_memory_type: int = MEMORY_CPU, preferred_device_id: int = 0) -> None:
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """A request. One made by a model is sent with `exec` or `async_exec`."""

    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_parameters",
        "_preferred_memory",
        "_release_flags",
        "_request_id",
        "_requested",
        "_target",
        "_timeout",
        "_trace",
    )

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Iterable[str | bytes] | None = None,
        model_name: str | bytes | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: InferenceTrace | None = None,
        parameters: Mapping[str, ParameterValue] | str | None = None,
    ) -> None:
        """Make a request to a model; `inputs`, `requested_output_names` and `model_name` are needed.

        Raises:
            TypeError: one of these is missing, or an argument has another type, as from Triton's binding.
            TritonModelException: an input is None, the correlation id is neither a number nor a string, or a
                parameter cannot be one.
        """
        if inputs is None or requested_output_names is None or model_name is None:
            raise TypeError("an InferenceRequest needs inputs, requested_output_names and model_name")
        if not (isinstance(model_version, int) and isinstance(flags, int) and isinstance(timeout, int)):
            raise TypeError("model_version, flags and timeout of an InferenceRequest are integers")
        request_id, model_name = as_text(request_id), as_text(model_name)
        _check(request_id, model_name, correlation_id, inputs)
        self._inputs: list[Tensor] | None = list(inputs)
        self._request_id = request_id
        self._correlation_id = as_text(correlation_id) if isinstance(correlation_id, str) else correlation_id
        self._requested = set(map(as_text, requested_output_names))
        self._target = (model_name, model_version)
        self._flags = flags
        self._timeout = timeout
        self._preferred_memory = preferred_memory
        self._trace = trace
        if isinstance(parameters, str):  # the result of another request's `parameters()`
            parameters = json.loads(parameters)
        self._parameters = NO_PARAMETERS if parameters is None else json.dumps(checked(parameters))
        self._release_flags = RELEASE_ALL

    def inputs(self) -> list[Tensor]:
        """Return the inputs, the same objects at each call."""
        return self._inputs or []

    def request_id(self) -> str:
        """Return the client's id, or ""."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """Return the sequence's id, or 0."""
        return self._correlation_id

    def requested_output_names(self) -> set[str]:
        """Return the names of the requested outputs; a set, as in Triton."""
        return self._requested

    def target(self) -> tuple[str, int]:
        """Return the model and version to call; -1 lets the version policy choose."""
        return self._target

    def preferred_memory(self) -> PreferredMemory:
        """Return the preferred memory of the outputs."""
        if self._preferred_memory is None:
            self._preferred_memory = PreferredMemory()
        return self._preferred_memory

    def flags(self) -> int:
        """Return the flags TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and _END."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        """Set the sequence flags."""
        self._flags = flags

    def timeout(self) -> int:
        """Return the timeout in microseconds, 0 for none."""
        return self._timeout

    def parameters(self) -> str:
        """Return the custom parameters as JSON."""
        return self._parameters

    def trace(self) -> InferenceTrace:
        """Return the trace of the request."""
        if self._trace is None:
            self._trace = InferenceTrace()
        return self._trace

    def set_release_flags(self, flags: int) -> None:
        """Have the request executed again with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE.

        Raises:
            TritonModelException: for an unknown flag.
        """
        if flags not in (RELEASE_ALL, RELEASE_RESCHEDULE):
            raise TritonModelException("Unable to set release flags. Unsupported flag provided.")
        self._release_flags = flags

    def is_cancelled(self) -> bool:
        """Whether the client cancelled or disconnected."""
        return False

    def get_response_sender(self) -> InferenceResponseSender:
        """Return the sender of the request's responses.

        Raises:
            TritonModelException: for a request that the model itself made.
        """
        raise TritonModelException("only a request given to 'execute' has a response sender")

    def exec(self, decoupled: bool = False) -> Any:
        """Execute the request on another model; return its response, or with `decoupled` an iterator.

        Raises:
            TritonModelException: while the calling model is being loaded or unloaded.
        """
        return server_api.for_call(self.target()[0]).exec(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Awaitable[Any]:
        """Return an awaitable `exec`."""
        return server_api.for_call(self.target()[0]).async_exec(self, decoupled)


class ReceivedRequest(InferenceRequest):
    """A request in `execute`; its inputs and sender are created at the first access."""

    __slots__ = ("_context", "_request", "_sender")

    def __init__(self, request: Request, context: "Context") -> None:
        # The fields of `InferenceRequest` stay unset: its methods are overridden to read the request.
        self._request = request
        self._context = context
        self._inputs = None
        self._release_flags = RELEASE_ALL
        self._sender: InferenceResponseSender | None = None
        if context.decoupled:
            self._sender = context.eager_sender(request)

    def inputs(self) -> list[Tensor]:
        inputs = self._inputs
        if inputs is None:
            self._inputs = inputs = []
            for tensor in self._request.infer.inputs:  # a comprehension is a call
                inputs.append(received_tensor(tensor))
        return inputs

    def request_id(self) -> str:
        return self._request.infer.id

    def correlation_id(self) -> int | str:
        return self._request.infer.sequence_id

    def requested_output_names(self) -> set[str]:
        outputs = self._request.infer.outputs
        return {output.name for output in outputs} if outputs else set(self._context.output_names)

    def target(self) -> tuple[str, int]:
        version = self._request.infer.model_version
        return self._request.infer.model_name, int(version) if version else -1

    def preferred_memory(self) -> PreferredMemory:
        return PreferredMemory()

    def flags(self) -> int:
        infer = self._request.infer
        return SEQUENCE_START * infer.sequence_start | SEQUENCE_END * infer.sequence_end

    def set_flags(self, flags: int) -> None:
        raise TritonModelException("the flags of a request that is being executed cannot be changed")

    def timeout(self) -> int:
        return self._request.infer.timeout_us

    def parameters(self) -> str:
        return json.dumps(self._request.infer.parameters)

    def trace(self) -> InferenceTrace:
        return InferenceTrace(self._request.infer.trace)

    def is_cancelled(self) -> bool:
        return self._request.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        if self._sender is None:
            self._sender = InferenceResponseSender(self._request, self._context.encoder, False)
        return self._sender


class Context:
    """Values shared by the requests of a model."""

    __slots__ = ("decoupled", "encoder", "output_names")

    def __init__(self, encoder: Encoder, output_names: Sequence[str], decoupled: bool) -> None:
        self.encoder = encoder
        self.output_names = output_names
        self.decoupled = decoupled

    def eager_sender(self, request: Request) -> InferenceResponseSender:
        """Return the sender of a decoupled request, whose end is that of its last reference."""
        return InferenceResponseSender(request, self.encoder, True)


def _check(request_id: str, model_name: str, correlation_id: int | str, inputs: Sequence[Tensor]) -> None:
    """Check what Triton's binding checks of a request.

    Raises:
        TypeError: there is no correlation id.
        TritonModelException: it is neither a number nor a string, or an input is None.
    """
    if correlation_id is None:
        raise TypeError("the correlation_id of an InferenceRequest is an integer or a string")
    if None in inputs:
        raise TritonModelException(
            f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not"
            " be empty."
        )
    if not isinstance(correlation_id, int | str):
        raise TritonModelException("Correlation ID must be integer or string")
