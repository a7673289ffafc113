"""The trace of one request and of the calls to other models that it made."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from app.core.observability.trace_settings import TraceSetting
from app.core.tensors import (
    TENSORS_TRACE,
    UNNAMED_TRACE,
    InferRequest,
    InferResponse,
    Tensor,
    Timestamps,
    TracedCall,
)
from app.ingress.tracing.trace_file import Stamp, encode_header, encode_objects, encode_stamp, encode_tensor

# A stream may have any number of responses: further tensors and stamps are left out, but the final response
# always has its stamps.
_MAX_OUTPUT_BYTES: Final = 64 << 20
_MAX_STAMPS: Final = 8192
_ACTIVITIES: Final = (
    "REQUEST_START",
    "QUEUE_START",
    "COMPUTE_START",
    "COMPUTE_INPUT_END",
    "COMPUTE_OUTPUT_START",
    "COMPUTE_END",
    "REQUEST_END",
)


def stamps_of(times: Timestamps) -> list[Stamp]:
    """Return a replica's timestamps as activities, without those that the backend reported."""
    return [(name, ns) for name in _ACTIVITIES if (ns := getattr(times, name.lower()))]


class Child(NamedTuple):
    """A call made by a traced request: its number, and the number of the trace or call that made it."""

    number: int
    parent: int
    call: TracedCall


class Trace:
    """The record of one request.

    Attributes:
        context: the trace context that the replica receives with the request.
        activities: stamps that the backend reported.
        attributes: of the span.
        span: the open span in mode `opentelemetry`, else None.
        children: `calls` and the calls those made, once the trace is complete.
    """

    __slots__ = (
        "_output_bytes",
        "activities",
        "attributes",
        "calls",
        "children",
        "collect",
        "context",
        "number",
        "outputs",
        "request",
        "setting",
        "span",
        "stamps",
        "version",
    )

    def __init__(
        self, setting: TraceSetting, number: int, request: InferRequest, collect: Callable[["Trace"], None]
    ) -> None:
        """`collect` receives the complete trace in the writer's thread."""
        self.setting = setting
        self.attributes: Mapping[str, str | int] = {}
        self.number = number
        self.request = request
        self.collect = collect
        self.version = request.model_version
        self.stamps: list[Stamp] = []
        self.activities: Sequence[Stamp] = ()
        self.span: Any = None
        self.context = TENSORS_TRACE if "TENSORS" in setting.level else UNNAMED_TRACE
        self.outputs: list[Tensor] = []
        self._output_bytes = 0
        self.calls: tuple[TracedCall, ...] = ()
        self.children: list[Child] = []

    def record(self, response: InferResponse, *stamps: Stamp) -> None:
        """Record a response and its stamps, as far as the level asks for them."""
        self.version = response.model_version or self.version
        if response.final or len(self.stamps) < _MAX_STAMPS:
            self.stamps += stamps
        if "TENSORS" in self.setting.level and self._output_bytes < _MAX_OUTPUT_BYTES:
            self.outputs += response.outputs
            self._output_bytes += sum(len(tensor.data) for tensor in response.outputs)

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors in this trace."""
        tensors = [*self.request.inputs, *self.outputs]
        for child in self.children:
            tensors += (*child.call.inputs, *child.call.outputs)
        return sum(len(tensor.data) for tensor in tensors)

    def encode(self) -> bytes:
        """Encode as the objects of Triton's trace format, with commas between them."""
        number, request = self.number, self.request
        objects = [encode_header(number, request.model_name, self.version, request.id)]
        stamps = (*self.stamps, *self.activities)
        objects += self._objects(number, stamps, request.inputs, self.outputs)
        for number, parent, call in self.children:
            objects.append(
                encode_header(number, call.model_name, call.model_version, call.request_id, parent)
            )
            stamps = (*stamps_of(call.timestamps), *call.timestamps.activities)
            objects += self._objects(number, stamps, call.inputs, call.outputs)
        return encode_objects(objects)

    def _objects(
        self, number: int, stamps: Iterable[Stamp], inputs: Iterable[Tensor], outputs: Iterable[Tensor]
    ) -> Iterator[dict[str, Any]]:
        """Return the objects of a request or call that the level asks for."""
        if "TIMESTAMPS" in self.setting.level:
            yield from (encode_stamp(number, stamp) for stamp in stamps)
        if "TENSORS" in self.setting.level:
            yield from (encode_tensor(number, "TENSOR_QUEUE_INPUT", each) for each in inputs)
            yield from (encode_tensor(number, "TENSOR_BACKEND_OUTPUT", each) for each in outputs)
