"""Traces requests and logs a line for each, where that is enabled.

A front only checks `Observer.enabled` for each request while it is false.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, Final, NamedTuple

import msgspec

from app.core.encoding import to_msgpack
from app.core.errors import ErrorCode, InferError, shortened
from app.core.inference import Call, Sink
from app.core.observability.live_settings import LiveChange, LiveSettings
from app.core.observability.log import VERBATIM, LogConfig, configure_logging
from app.core.observability.trace_settings import GLOBAL, Change, TraceSetting
from app.core.observability.traced import traced_call
from app.core.tape.switch import TapeSetting, TapeSwitch
from app.core.tensors import UNNAMED_TRACE, InferRequest, InferResponse, Timestamps, failed
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.recent import LOOKED_AT_S, RING, KeptTrace, TraceRing
from app.ingress.tracing.sampling import Tracer
from app.ingress.tracing.trace import Trace, stamps_of
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

_MAX_ID: Final = 1 << 10
"""Characters of a request's id in the log."""

REQUEST_LOG_LEVEL = 1
"""The verbose level from which every request is logged."""

Configure = Callable[[bytes, bytes], Awaitable[None]]


class RequestOrigin(NamedTuple):
    """The protocol of a request, when its first byte arrived (`time.monotonic_ns`), and its trace context.

    `attributes` are those of its span; what is added until its final response was sent counts too.
    """

    protocol: str
    begun_ns: int
    traceparent: str = ""
    attributes: Mapping[str, str | int] = {}


class Activities(NamedTuple):
    """Triton's names of a front's activities."""

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str


_ACTIVITIES = {
    "http": Activities("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"),
    "grpc": Activities("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"),
}


class Observer:
    """Applies the live settings of an ingress: logging, tracing, request log, tape.

    Runs on the data-plane loop.

    Args:
        live: the settings at the start.
        configure: sends a change to the repository manager; see `RepositoryManager.configure`.
        suffix: the end of trace file names.
        switch_tape: switches the tape of this process.
    """

    def __init__(
        self,
        live: LiveSettings,
        configure: Configure | None = None,
        suffix: str = "",
        switch_tape: Callable[[TapeSwitch], None] | None = None,
    ) -> None:
        self.live = live
        self.enabled = False
        self._configure, self._switch_tape = configure, switch_tape
        self._tracer = Tracer(live.trace, suffix)
        self._ring = TraceRing()
        self._refresh_enabled()

    def apply(self, live: LiveSettings | None) -> None:
        """Apply the settings that the manager published; None leaves them as they are."""
        if live is None or live == self.live:
            return
        changed, self.live = self.live, live
        if live.log != changed.log:
            configure_logging(live.log)
        if live.tape != changed.tape and self._switch_tape is not None:
            self._switch_tape(live.tape)
        self._tracer.apply(live.trace)
        self._refresh_enabled()

    def _refresh_enabled(self) -> None:
        self._logs = self.live.log.log_verbose_level >= REQUEST_LOG_LEVEL
        self.enabled = self._logs or self._tracer.enabled or self._ring.looked_at

    def recent_traces(self, after: int = 0) -> Sequence[KeptTrace]:
        """Return the last traces after the one of this number; some requests are traced for further ones."""
        found = self._ring.read(after)
        self._refresh_enabled()
        asyncio.get_running_loop().call_later(LOOKED_AT_S + 0.1, self._refresh_enabled)
        return found

    @property
    def log(self) -> LogConfig:
        """The current log settings."""
        return self.live.log

    def trace_setting(self, model: str = GLOBAL) -> TraceSetting:
        """Return the current trace setting of a model; its count is the number of traces left."""
        scope = self._tracer.scope(model)
        return msgspec.structs.replace(scope.setting, count=scope.remaining)

    async def change_log(self, change: dict[str, Any]) -> LogConfig:
        """Change log settings in every process, and return them."""
        await self._change(LiveChange(log=change))
        return self.log

    async def change_trace(self, model: str, change: Change) -> TraceSetting:
        """Change the trace settings of a model, or of all (`GLOBAL`), in every ingress, and return them.

        Raises:
            InferError: INVALID_ARG for settings that cannot trace anything.
        """
        await self._change(LiveChange(trace={model: dict(change)}))
        return self.trace_setting(model)

    def tape_setting(self, model: str = GLOBAL) -> TapeSetting:
        """Return what is recorded of a model, or of all that have no setting of their own."""
        return self.live.tape.of(model)

    async def change_tape(self, model: str, change: Change) -> TapeSetting:
        """Change what is recorded of a model, or of all (`GLOBAL`), in every ingress, and return it."""
        await self._change(LiveChange(tape={model: dict(change)}))
        return self.tape_setting(model)

    async def _change(self, change: LiveChange) -> None:
        changed = self.live.changed(change)
        if self._configure is None:
            self.apply(changed)
        elif any((change.log, *change.trace.values(), *change.tape.values())):
            await self._configure(to_msgpack(change), to_msgpack(self.live))

    def close(self) -> None:
        """Save all traces; blocks until they are on disk."""
        self._tracer.close()

    def _observed(self, request: InferRequest, sink: Sink, origin: RequestOrigin) -> "_Observed | None":
        scope = self._tracer.scope(request.model_name)
        trace = None
        if scope.sample(origin.traceparent):
            trace = self._tracer.begin(request, scope, origin.begun_ns, origin.traceparent)
            trace.attributes = origin.attributes
        elif self._ring.sample():
            trace = self._tracer.begin_unsaved(request, RING)
        elif not self._logs:
            return None
        return _Observed(self, request, sink, origin, trace)

    def observe(
        self,
        service: InferenceService,
        entry: VersionEntry,
        request: InferRequest,
        sink: Sink,
        origin: RequestOrigin,
    ) -> Call:
        """Submit a request to a service, traced and logged where that applies.

        Raises:
            InferError: the one that `InferenceService.submit` raises.
        """
        observed = self._observed(request, sink, origin)
        if observed is None:
            return service.submit(entry, request, sink)
        try:
            return service.submit(entry, observed.request, observed.deliver)
        except InferError as error:
            observed.record(failed(error), monotonic_ns())
            raise

    def finish(self, trace: Trace) -> None:
        """Save the trace of a request whose final response was sent."""
        self._tracer.number_calls(trace)
        self._ring.add(trace)
        if trace.setting is not RING:
            self._tracer.finish(trace)

    def log_request(
        self, request: InferRequest, response: InferResponse, origin: RequestOrigin, now_ns: int
    ) -> None:
        """Log one request if that is enabled; durations are microseconds."""
        if not self._logs:
            return
        line = {
            "event": "request",
            "protocol": origin.protocol,
            "model": request.model_name,
            "version": response.model_version or request.model_version,
            "request_id": shortened(request.id, _MAX_ID),
            "status": "OK" if response.failure is None else response.failure.code.value,
            "total_us": (now_ns - origin.begun_ns) // 1000,
            **_durations(response.timestamps),
        }
        if origin.traceparent:
            line["traceparent"] = origin.traceparent
        if response.failure is not None:
            line["error"] = response.failure.message
        logger.debug("%s", json.dumps(line), extra=VERBATIM)


def _durations(times: Timestamps | None) -> dict[str, int]:
    if times is None or not times.compute_end:
        return {}
    return {
        "queue_us": (times.compute_start - times.queue_start) // 1000,
        "compute_input_us": (times.compute_input_end - times.compute_start) // 1000,
        "compute_infer_us": (times.compute_output_start - times.compute_input_end) // 1000,
        "compute_output_us": (times.compute_end - times.compute_output_start) // 1000,
    }


class _Observed:
    """Records the responses of one request on their way to the front's sink."""

    __slots__ = ("_observer", "_origin", "_sent_ns", "_sink", "_trace", "request")

    def __init__(
        self,
        observer: Observer,
        request: InferRequest,
        sink: Sink,
        origin: RequestOrigin,
        trace: Trace | None,
    ) -> None:
        self._observer = observer
        context = UNNAMED_TRACE if trace is None else trace.context
        self.request = msgspec.structs.replace(request, trace=context)
        self._sink = sink
        self._origin = origin
        self._trace = trace
        self._sent_ns = monotonic_ns()
        if trace is not None:
            names = _ACTIVITIES[origin.protocol]
            trace.stamps += (names.receive_start, origin.begun_ns), (names.receive_end, self._sent_ns)

    def deliver(self, response: InferResponse) -> None:
        """Pass a response on, and record when it arrived and was sent."""
        received_ns = monotonic_ns()
        self._sink(response)
        self.record(response, received_ns)

    def record(self, response: InferResponse, received_ns: int) -> None:
        """Record a response that arrived at `received_ns` and has been sent."""
        if self._trace is not None:
            self._extend(self._trace, response, received_ns)
        if response.final:
            self._observer.log_request(self.request, response, self._origin, monotonic_ns())

    def _extend(self, trace: Trace, response: InferResponse, received_ns: int) -> None:
        names = _ACTIVITIES[self._origin.protocol]
        failure = response.failure
        # The replica's timestamps are awaited for some seconds where a request was cancelled.
        cancelled = failure is not None and failure.code is ErrorCode.CANCELLED
        if response.timestamps is not None or cancelled:
            call = traced_call(self.request, response, self._sent_ns, received_ns)
            trace.stamps += stamps_of(call.timestamps)
            trace.activities = call.timestamps.activities
            trace.calls = call.calls
        trace.record(
            response,
            ("INFER_RESPONSE_COMPLETE", received_ns),
            (names.send_start, received_ns),
            (names.send_end, monotonic_ns()),
        )
        if response.final:
            self._observer.finish(trace)
