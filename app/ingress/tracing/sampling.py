"""Selects the requests that are traced, and saves their traces.

Sampling runs on the event loop; encoding and saving run in one thread, in order. Rate and count hold for an
ingress process: with several of them each counts for itself.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from app.core.observability.trace_settings import GLOBAL, TraceSetting, TraceSettings
from app.core.tensors import InferRequest, TracedCall
from app.ingress.tracing.trace import Child, Trace
from app.ingress.tracing.trace_file import TraceFile

if TYPE_CHECKING:
    from app.ingress.tracing.otel import Telemetry

logger = logging.getLogger(__name__)

_TRACEPARENT: Final = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C Trace Context, section 3.2."""
_MAX_QUEUED: Final = 1024
_MAX_QUEUED_BYTES: Final = 256 << 20
"""Bounds of the writer's queue: traces, and bytes of their tensors; further traces are dropped."""
_MAX_BUFFERED_BYTES: Final = 64 << 20
"""Bytes buffered for a file of `log_frequency` traces; it gets fewer where they are larger than that."""
_SAVE_TRACES: Final = 256
_SAVE_BYTES: Final = 1 << 20
"""Traces and bytes buffered for a file without a number."""


class TraceScope:
    """Samples the requests of one model, or of all models without a setting of their own.

    `sample` runs on the event loop, `collect`, `save` and `retire` in the writer's thread.
    """

    def __init__(self, setting: TraceSetting, file: TraceFile | None) -> None:
        self.setting = setting
        self.remaining = setting.count
        self.enabled = setting.traces
        self._retired = False
        self._file = file
        self._propagates = setting.mode == "opentelemetry"
        self._seen = 0
        self._created = 0
        self._collected = 0
        self._buffered: list[bytes] = []
        self._buffered_bytes = 0

    def sample(self, traceparent: str = "") -> bool:
        """Return whether the next request is traced.

        In mode opentelemetry, as in Triton, a request that its client traces always is.
        """
        if self.enabled and traceparent and self._propagates and _TRACEPARENT.fullmatch(traceparent):
            return True
        if not self.enabled or not self.setting.rate or not self.remaining:
            return False
        self._seen += 1
        if self._seen % self.setting.rate:
            return False
        if self.remaining > 0:
            self.remaining -= 1
        self._created += 1
        return True

    def collect(self, trace: Trace) -> None:
        """Buffer a complete trace, and save the buffer when it is due."""
        encoded = trace.encode()
        self._buffered.append(encoded)
        self._buffered_bytes += len(encoded)
        self._collected += 1
        frequency = self.setting.log_frequency
        if (frequency and len(self._buffered) >= frequency) or (
            not self.remaining and self._collected == self._created
        ):
            self.save(numbered=True)
        elif (
            self._retired
            or self._buffered_bytes >= (_MAX_BUFFERED_BYTES if frequency else _SAVE_BYTES)
            or (not frequency and len(self._buffered) >= _SAVE_TRACES)
        ):
            self.save()

    def save(self, numbered: bool | None = None) -> None:
        """Write the buffer to a file, `numbered` or not; by default as the log frequency says."""
        traces, self._buffered, self._buffered_bytes = self._buffered, [], 0
        if traces and self._file is not None:
            self._file.save(traces, bool(self.setting.log_frequency) if numbered is None else numbered)

    def retire(self) -> None:
        """Save now, and from now on each trace as it completes: the setting was replaced."""
        self._retired = True
        self.save()


class Tracer:
    """Samples requests by the settings of their models; saves traces in mode `triton`."""

    def __init__(self, settings: TraceSettings, suffix: str = "") -> None:
        """`suffix` ends the name of the file, where several processes write."""
        self._file = TraceFile(settings.startup.file + suffix)
        self._telemetry = _telemetry(settings.startup)
        self._writer = ThreadPoolExecutor(1, "traces")
        # Each counter is written by one thread only: `_submitted` by the loop, `_done` by the writer.
        self._submitted = self._done = 0
        self._submitted_bytes = self._done_bytes = 0
        self._numbers = 0
        self._failed = False
        self._scopes = {GLOBAL: TraceScope(settings.for_model(), self._file)}
        self.apply(settings)

    @property
    def enabled(self) -> bool:
        """Whether any request may be traced."""
        return any(scope.enabled for scope in self._scopes.values())

    def apply(self, settings: TraceSettings) -> None:
        """Replace the settings; a scope whose setting is unchanged keeps its count of requests."""
        wanted = {name: settings.for_model(name) for name in (GLOBAL, *settings.overrides)}
        for name, scope in list(self._scopes.items()):
            if wanted.get(name) != scope.setting:
                del self._scopes[name]
                self._run_in_writer(scope.retire)
        for name, setting in wanted.items():
            if name not in self._scopes:
                self._scopes[name] = TraceScope(setting, self._file)

    def scope(self, model: str) -> TraceScope:
        """Return the scope that samples a model's requests."""
        return self._scopes.get(model) or self._scopes[GLOBAL]

    def begin(
        self, request: InferRequest, scope: TraceScope, begun_ns: int = 0, traceparent: str = ""
    ) -> Trace:
        """Start the trace of a sampled request.

        Args:
            request: the request.
            scope: the scope that sampled it.
            begun_ns: when its first byte arrived, `time.monotonic_ns`.
            traceparent: the client's trace context, empty without one.
        """
        self._numbers += 1
        trace = Trace(scope.setting, self._numbers, request, scope.collect)
        if self._telemetry is not None:
            trace.span = self._telemetry.start(traceparent, begun_ns)
            trace.context = self._telemetry.traceparent(trace.span)
        return trace

    def begin_unsaved(self, request: InferRequest, setting: TraceSetting) -> Trace:
        """Start a trace that is numbered like the others, and that `finish` is not for."""
        self._numbers += 1
        return Trace(setting, self._numbers, request, lambda _: None)

    def number_calls(self, trace: Trace) -> None:
        """Give the calls of a complete trace their numbers."""
        trace.children = list(self._numbered(trace.calls, trace.number))

    def finish(self, trace: Trace) -> None:
        """Queue a complete trace, whose calls have numbers, for the writer, or export its spans."""
        if self._telemetry is not None:
            self._telemetry.finish(trace)
            return
        queued_bytes = self._submitted_bytes - self._done_bytes
        if self._submitted - self._done < _MAX_QUEUED and queued_bytes <= _MAX_QUEUED_BYTES:
            self._submitted_bytes += trace.nbytes
            self._run_in_writer(lambda: self._collect(trace))

    def _collect(self, trace: Trace) -> None:
        try:
            trace.collect(trace)
        finally:
            self._done_bytes += trace.nbytes

    def _numbered(self, calls: Iterable[TracedCall], parent: int) -> Iterator[Child]:
        """Number calls, each before the calls that it made."""
        for call in calls:
            self._numbers += 1
            number = self._numbers
            yield Child(number, parent, call)
            yield from self._numbered(call.calls, number)

    def close(self) -> None:
        """Save everything; blocks until it is on disk."""
        for scope in self._scopes.values():
            self._run_in_writer(scope.retire)
        self._writer.shutdown(wait=True)
        if self._telemetry is not None:
            self._telemetry.close()
        self._file.close()

    def _run_in_writer(self, work: Callable[[], None]) -> None:
        self._submitted += 1
        self._writer.submit(self._run, work)

    def _run(self, work: Callable[[], None]) -> None:
        self._done += 1
        try:
            work()
        except OSError as error:
            if not self._failed:  # log it once: it would fail the same way for every trace
                logger.error("cannot save traces: %s", error)
            self._failed = True
        except Exception:
            logger.exception("cannot save a trace")


def _telemetry(setting: TraceSetting) -> "Telemetry | None":
    if setting.mode != "opentelemetry":
        return None
    from app.ingress.tracing.otel import Telemetry  # needs an extra, and is slow to import

    return Telemetry(setting)
