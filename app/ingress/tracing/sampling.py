"""Which requests are traced, what is noted of each, and when it is saved.

Sampling runs on the event loop; encoding and saving run in one thread, in order. Rate and count hold for an
ingress process: with several of them each counts for itself.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from app.core.tensors import (
    TENSORS_TRACE,
    UNNAMED_TRACE,
    InferRequest,
    InferResponse,
    Tensor,
    Timestamps,
    TracedCall,
)
from app.core.trace_settings import GLOBAL, TraceSetting, TraceSettings
from app.ingress.tracing.trace_file import (
    Stamp,
    TraceFile,
    encode_header,
    encode_objects,
    encode_stamp,
    encode_tensor,
)

if TYPE_CHECKING:
    from app.ingress.tracing.otel import Telemetry

logger = logging.getLogger(__name__)

_TRACEPARENT: Final = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, section 3.2."""
_MAX_WAITING: Final = 1024
_MAX_WAITING_BYTES: Final = 256 << 20
"""Traces that may wait for the writer, and their tensors; further ones are dropped."""
_MAX_HELD_BYTES: Final = 64 << 20
"""What is held back for a file of `log_frequency` traces; it gets fewer where they are as large as that. And
what a request's responses may have, of which further ones are left out."""
_MAX_STAMPS: Final = 8192
"""Likewise, of a stream of responses: its last one has its stamps."""
_SAVE_TRACES: Final = 256
_SAVE_BYTES: Final = 1 << 20
"""How much is held back for a file without a number."""
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
    """A replica's timestamps as activities, without those that the backend reported."""
    return [(name, ns) for name in _ACTIVITIES if (ns := getattr(times, name.lower()))]


class Child(NamedTuple):
    """A call that a traced request led to, with its number and that of the trace it belongs to."""

    number: int
    parent: int
    call: TracedCall


class Trace:
    """What is noted of one request."""

    __slots__ = (
        "activities",
        "calls",
        "children",
        "context",
        "kept",
        "number",
        "outputs",
        "request",
        "scope",
        "span",
        "stamps",
        "version",
    )

    def __init__(self, scope: "TraceScope", number: int, request: InferRequest) -> None:
        self.scope = scope
        self.number = number
        self.request = request
        self.version = request.model_version
        self.stamps: list[Stamp] = []
        self.activities: Sequence[Stamp] = ()  # that the backend has reported
        self.span: Any = None  # in mode opentelemetry
        # What the replica is told.
        self.context = TENSORS_TRACE if "TENSORS" in scope.setting.level else UNNAMED_TRACE
        self.outputs: list[Tensor] = []
        self.kept = 0  # bytes of them
        self.calls: tuple[TracedCall, ...] = ()
        self.children: list[Child] = []  # `calls` and what they led to, once the trace is complete

    def note(self, response: InferResponse, *stamps: Stamp) -> None:
        """Keep what the level asks for of a response, and when it was there and sent."""
        self.version = response.model_version or self.version
        if response.final or len(self.stamps) < _MAX_STAMPS:
            self.stamps += stamps
        if "TENSORS" in self.scope.setting.level and self.kept < _MAX_HELD_BYTES:
            self.outputs += response.outputs
            self.kept += sum(len(tensor.data) for tensor in response.outputs)

    @property
    def nbytes(self) -> int:
        """Of the tensors that it holds."""
        tensors = [*self.request.inputs, *self.outputs]
        for child in self.children:
            tensors += (*child.call.inputs, *child.call.outputs)
        return sum(len(tensor.data) for tensor in tensors)

    def encode(self) -> bytes:
        """Triton's objects for this trace."""
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
        """What the level asks for of a request or call."""
        if "TIMESTAMPS" in self.scope.setting.level:
            yield from (encode_stamp(number, stamp) for stamp in stamps)
        if "TENSORS" in self.scope.setting.level:
            yield from (encode_tensor(number, "TENSOR_QUEUE_INPUT", each) for each in inputs)
            yield from (encode_tensor(number, "TENSOR_BACKEND_OUTPUT", each) for each in outputs)


class TraceScope:
    """The requests that one setting is for: those of a model, or of all that have no setting of their own.

    `sample` runs on the loop, `collect` and `save` in the writer's thread.
    """

    def __init__(self, setting: TraceSetting, file: TraceFile | None) -> None:
        self.setting = setting
        self.remaining = setting.count
        self.on = setting.traces
        self.retired = False
        self._file = file
        self._propagates = setting.mode == "opentelemetry"
        self._seen = 0
        self._created = 0
        self._collected = 0
        self._held: list[bytes] = []
        self._bytes = 0

    def sample(self, traceparent: str = "") -> bool:
        """Whether the next request is to be traced.

        In mode opentelemetry, as in Triton, one whose client traces it always is.
        """
        if self.on and traceparent and self._propagates and _TRACEPARENT.fullmatch(traceparent):
            return True
        if not self.on or not self.setting.rate or not self.remaining:
            return False
        self._seen += 1
        if self._seen % self.setting.rate:
            return False
        if self.remaining > 0:
            self.remaining -= 1
        self._created += 1
        return True

    def collect(self, trace: Trace) -> None:
        """Take a finished trace, and save what is due."""
        encoded = trace.encode()
        self._held.append(encoded)
        self._bytes += len(encoded)
        self._collected += 1
        frequency = self.setting.log_frequency
        if (frequency and len(self._held) >= frequency) or (
            not self.remaining and self._collected == self._created
        ):
            self.save(numbered=True)
        elif (
            self.retired
            or self._bytes >= (_MAX_HELD_BYTES if frequency else _SAVE_BYTES)
            or (not frequency and len(self._held) >= _SAVE_TRACES)
        ):
            self.save()

    def save(self, numbered: bool | None = None) -> None:
        """Save what was collected, by default as the log frequency says."""
        held, self._held, self._bytes = self._held, [], 0
        if held and self._file is not None:
            self._file.save(held, bool(self.setting.log_frequency) if numbered is None else numbered)

    def retire(self) -> None:
        """Other settings hold now: save, and save what is still under way when it comes."""
        self.retired = True
        self.save()


class Tracer:
    """Samples requests by the settings of their models; saves traces in mode `triton`."""

    def __init__(self, settings: TraceSettings, suffix: str = "") -> None:
        """`suffix` ends the name of the file, where several processes write."""
        self._file = TraceFile(settings.startup.file + suffix)
        self._telemetry = _telemetry(settings.startup)
        self._writer = ThreadPoolExecutor(1, "traces")
        # By the loop, by the writer.
        self._submitted = self._done = 0
        self._submitted_bytes = self._done_bytes = 0
        self._numbers = 0
        self._failed = False
        self._scopes = {GLOBAL: TraceScope(settings.of(), self._file)}
        self.apply(settings)

    @property
    def on(self) -> bool:
        """Whether any request may be traced."""
        return any(scope.on for scope in self._scopes.values())

    def apply(self, settings: TraceSettings) -> None:
        """Go by other settings; a scope whose setting stays keeps its place in the sampling."""
        wanted = {name: settings.of(name) for name in (GLOBAL, *settings.overrides)}
        for name, scope in list(self._scopes.items()):
            if wanted.get(name) != scope.setting:
                del self._scopes[name]
                self._do(scope.retire)
        for name, setting in wanted.items():
            if name not in self._scopes:
                self._scopes[name] = TraceScope(setting, self._file)

    def scope(self, model: str) -> TraceScope:
        """What a model's requests are sampled by."""
        return self._scopes.get(model) or self._scopes[GLOBAL]

    def begin(
        self, request: InferRequest, scope: TraceScope, begun_ns: int = 0, traceparent: str = ""
    ) -> Trace:
        """Start the trace of a request that was sampled."""
        self._numbers += 1
        trace = Trace(scope, self._numbers, request)
        if self._telemetry is not None:
            trace.span = self._telemetry.start(traceparent, begun_ns)
            trace.context = self._telemetry.traceparent(trace.span)
        return trace

    def finish(self, trace: Trace) -> None:
        """Hand a complete trace to the writer, or its spans to their exporter."""
        trace.children = list(self._numbered(trace.calls, trace.number))
        if self._telemetry is not None:
            self._telemetry.finish(trace)
            return
        waiting = self._submitted_bytes - self._done_bytes
        if self._submitted - self._done < _MAX_WAITING and waiting <= _MAX_WAITING_BYTES:
            self._submitted_bytes += trace.nbytes
            self._do(lambda: self._collect(trace))

    def _collect(self, trace: Trace) -> None:
        try:
            trace.scope.collect(trace)
        finally:
            self._done_bytes += trace.nbytes

    def _numbered(self, calls: Iterable[TracedCall], parent: int) -> Iterator[Child]:
        """Calls, each before what it led to."""
        for call in calls:
            self._numbers += 1
            number = self._numbers
            yield Child(number, parent, call)
            yield from self._numbered(call.calls, number)

    def close(self) -> None:
        """Save everything; returns when it is on disk."""
        for scope in self._scopes.values():
            self._do(scope.retire)
        self._writer.shutdown(wait=True)
        if self._telemetry is not None:
            self._telemetry.close()
        self._file.close()

    def _do(self, work: Callable[[], None]) -> None:
        self._submitted += 1
        self._writer.submit(self._run, work)

    def _run(self, work: Callable[[], None]) -> None:
        self._done += 1
        try:
            work()
        except OSError as error:
            if not self._failed:  # once: the next request would say the same
                logger.error("cannot save traces: %s", error)
            self._failed = True
        except Exception:
            logger.exception("saving a trace")


def _telemetry(setting: TraceSetting) -> "Telemetry | None":
    if setting.mode != "opentelemetry":
        return None
    from app.ingress.tracing.otel import Telemetry  # an extra, and slow to import

    return Telemetry(setting)
