"""What is noted of requests on their way: traces, and one log line each where that is wanted.

A front asks `Observer.on` of every request and nothing more while it is false.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from time import monotonic_ns
from typing import Any, NamedTuple

import msgspec

from app.core.errors import InferError
from app.core.inference import Call, Sink
from app.core.live_settings import LiveChange, LiveSettings
from app.core.log import VERBATIM, LogConfig, configure_logging
from app.core.tensors import UNNAMED_TRACE, InferRequest, InferResponse, Timestamps, failed
from app.core.trace_settings import GLOBAL, Change, TraceSetting
from app.core.traced import traced_call
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.sampling import Trace, Tracer, stamps_of
from app.routing.table import VersionEntry

logger = logging.getLogger(__name__)

REQUEST_LOG_LEVEL = 1
"""The verbose level from which every request leaves a line."""

Configure = Callable[[bytes, bytes], Awaitable[None]]


class RequestOrigin(NamedTuple):
    """How a request came in: `begun_ns` (`time.monotonic_ns`) is when its first byte was there."""

    protocol: str
    begun_ns: int
    traceparent: str = ""


class Activities(NamedTuple):
    """Triton's names for what a front does."""

    receive_start: str
    receive_end: str
    send_start: str
    send_end: str


_ACTIVITIES = {
    "http": Activities("HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"),
    "grpc": Activities("GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"),
}


class Observer:
    """The live settings of an ingress and what follows from them. Runs on the data-plane loop.

    Args:
        live: the settings at the start.
        configure: tells the repository manager of a change; see `RepositoryManager.configure`.
        suffix: ends the names of trace files.
    """

    def __init__(self, live: LiveSettings, configure: Configure | None = None, suffix: str = "") -> None:
        self.live = live
        self.on = False
        self._configure = configure
        self._tracer = Tracer(live.trace, suffix)
        self._look()

    def apply(self, live: LiveSettings | None) -> None:
        """Go by what the manager published; None when it has no say."""
        if live is None or live == self.live:
            return
        changed, self.live = self.live, live
        if live.log != changed.log:
            configure_logging(live.log)
        self._tracer.apply(live.trace)
        self._look()

    def _look(self) -> None:
        self._logs = self.live.log.log_verbose_level >= REQUEST_LOG_LEVEL
        self.on = self._logs or self._tracer.on

    @property
    def log(self) -> LogConfig:
        """The present log settings."""
        return self.live.log

    def trace_setting(self, model: str = GLOBAL) -> TraceSetting:
        """The present trace setting of a model; its count is what is left."""
        scope = self._tracer.scope(model)
        return msgspec.structs.replace(scope.setting, count=scope.remaining)

    async def change_log(self, change: dict[str, Any]) -> LogConfig:
        """Change log settings in every process; returns them."""
        await self._change(LiveChange(log=change))
        return self.log

    async def change_trace(self, model: str, change: Change) -> TraceSetting:
        """Change the trace settings of a model, or of all (`GLOBAL`), in every ingress; returns them.

        Raises:
            InferError: INVALID_ARG when nothing could be traced so.
        """
        await self._change(LiveChange(trace={model: dict(change)}))
        return self.trace_setting(model)

    async def _change(self, change: LiveChange) -> None:
        changed = self.live.changed(change)
        if self._configure is None:
            self.apply(changed)
        elif any((change.log, *change.trace.values())):
            await self._configure(msgspec.msgpack.encode(change), msgspec.msgpack.encode(self.live))

    def close(self) -> None:
        """Save what was traced; blocks until it is on disk."""
        self._tracer.close()

    def observe(self, request: InferRequest, sink: Sink, arrival: RequestOrigin) -> tuple[InferRequest, Sink]:
        """The request and the sink to submit in the place of these; the same ones if nobody cares."""
        observed = self._observed(request, sink, arrival)
        return (request, sink) if observed is None else (observed.request, observed.take)

    def _observed(self, request: InferRequest, sink: Sink, arrival: RequestOrigin) -> "_Observed | None":
        scope = self._tracer.scope(request.model_name)
        trace = None
        if scope.sample(arrival.traceparent):
            trace = self._tracer.begin(request, scope, arrival.begun_ns, arrival.traceparent)
        elif not self._logs:
            return None
        return _Observed(self, request, sink, arrival, trace)

    def submit(
        self,
        service: InferenceService,
        entry: VersionEntry,
        request: InferRequest,
        sink: Sink,
        arrival: RequestOrigin,
    ) -> Call:
        """`InferenceService.submit`, observed."""
        observed = self._observed(request, sink, arrival)
        if observed is None:
            return service.submit(entry, request, sink)
        try:
            return service.submit(entry, observed.request, observed.take)
        except InferError as error:
            observed.note(failed(error), monotonic_ns())
            raise

    def finish(self, trace: Trace) -> None:
        """A traced request is answered."""
        self._tracer.finish(trace)

    def log_request(
        self, request: InferRequest, response: InferResponse, arrival: RequestOrigin, now_ns: int
    ) -> None:
        """Write the line of one request; durations are microseconds."""
        if not self._logs:
            return
        line = {
            "event": "request",
            "protocol": arrival.protocol,
            "model": request.model_name,
            "version": response.model_version or request.model_version,
            "request_id": request.id,
            "status": "OK" if response.failure is None else response.failure.code.value,
            "total_us": (now_ns - arrival.begun_ns) // 1000,
            **_durations(response.timestamps),
        }
        if arrival.traceparent:
            line["traceparent"] = arrival.traceparent
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
    """The sink of one observed request, in front of the front's own."""

    __slots__ = ("_arrival", "_observer", "_sent_ns", "_sink", "_trace", "request")

    def __init__(
        self,
        observer: Observer,
        request: InferRequest,
        sink: Sink,
        arrival: RequestOrigin,
        trace: Trace | None,
    ) -> None:
        self._observer = observer
        context = UNNAMED_TRACE if trace is None else trace.context
        self.request = msgspec.structs.replace(request, trace=context)
        self._sink = sink
        self._arrival = arrival
        self._trace = trace
        self._sent_ns = monotonic_ns()
        if trace is not None:
            names = _ACTIVITIES[arrival.protocol]
            trace.stamps += (names.receive_start, arrival.begun_ns), (names.receive_end, self._sent_ns)

    def take(self, response: InferResponse) -> None:
        """Receive a response, pass it on, and note both."""
        begun_ns = monotonic_ns()
        self._sink(response)
        self.note(response, begun_ns)

    def note(self, response: InferResponse, begun_ns: int) -> None:
        """Note a response that there has been since `begun_ns`."""
        if self._trace is not None:
            self._extend(self._trace, response, begun_ns)
        if response.final:
            self._observer.log_request(self.request, response, self._arrival, monotonic_ns())

    def _extend(self, trace: Trace, response: InferResponse, begun_ns: int) -> None:
        names = _ACTIVITIES[self._arrival.protocol]
        if response.timestamps is not None:
            call = traced_call(self.request, response, self._sent_ns, begun_ns)
            trace.stamps += stamps_of(call.timestamps)
            trace.activities = call.timestamps.activities
            trace.calls = call.calls
        trace.note(
            response,
            ("INFER_RESPONSE_COMPLETE", begun_ns),
            (names.send_start, begun_ns),
            (names.send_end, monotonic_ns()),
        )
        if response.final:
            self._observer.finish(trace)
