"""Exports traces as OpenTelemetry spans over OTLP/HTTP, in a thread of the SDK. Needs the extra `otel`.

The spans are Triton's: `InferRequest` covers the whole request; its child is named after the model; below
that one are `compute` and the spans of the models that it called. Activities are events of their span.
"""

import logging
import re
from collections.abc import Iterable
from time import monotonic_ns, time_ns
from typing import Any, Final

from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app.core.observability.trace_settings import TraceSetting
from app.core.tensors import Timestamps, TracedCall
from app.ingress.tracing.trace import Child, Trace, stamps_of
from app.ingress.tracing.trace_file import Stamp

DEFAULT_URL: Final = "http://localhost:4318/v1/traces"
_MODEL: Final = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
_COMPUTE: Final = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")
_SDK: Final = logging.getLogger("opentelemetry")
_TEXTS: Final = {"Queue full, dropping Span.": "BatchSpanProcessor queue is full - dropping span."}
"""What Triton's SDK says, by what this one says."""

_IDLE_MS: Final = 1000
"""How long the SDK's thread sleeps where each span wakes it."""

logger = logging.getLogger(__name__)


class _Relay(logging.Handler):
    """Writes what the SDK says to the server's log, which its records would not reach."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one of this module."""
        text = record.getMessage()
        logger.log(record.levelno, _TEXTS.get(text, text), exc_info=record.exc_info)


class Telemetry:
    """Makes and exports spans. Times are given as `time.monotonic_ns`.

    Args:
        setting: `url`, `resource` and the `bsp_` options of its batch span processor.
    """

    def __init__(self, setting: TraceSetting) -> None:
        if not any(isinstance(handler, _Relay) for handler in _SDK.handlers):
            _SDK.addHandler(_Relay(logging.WARNING))
        options = setting.options
        attributes = dict(
            pair.split("=", 1) for pair in re.split(",", options.get("resource", "")) if "=" in pair
        )
        exporter = OTLPSpanExporter(endpoint=_url(options.get("url", "")))
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "triton-inference-server", **attributes})
        )
        queue, delay = int(options["bsp_max_queue_size"]), int(options["bsp_schedule_delay"])
        # Without a delay no span waits for others.
        batch = int(options["bsp_max_export_batch_size"]) if delay else 1
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=queue,
                # tritonserver accepts no delay, and more than fits the queue; this processor would not
                schedule_delay_millis=delay or _IDLE_MS,
                max_export_batch_size=min(queue, batch),
            )
        )
        self._tracer = self._provider.get_tracer("triton-server")
        self._propagator = TraceContextTextMapPropagator()

    def start(self, traceparent: str, begun_ns: int) -> Any:
        """Open the span of a request, as a child of its client's span if there is one."""
        context = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        return self._tracer.start_span(
            "InferRequest", context, api.SpanKind.SERVER, start_time=begun_ns + _offset()
        )

    def traceparent(self, span: Any) -> str:
        """Return the trace context that makes a replica's spans children of this one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, api.set_span_in_context(span))
        return carrier["traceparent"]

    def finish(self, trace: Trace) -> None:
        """Add the events of a request to its span and end it, and make the spans of the calls it made."""
        offset = _offset()
        root = trace.span
        if trace.attributes:
            root.set_attributes(dict(trace.attributes))
        for name, ns in trace.stamps:
            if name not in _MODEL and name not in _COMPUTE:
                root.add_event(name, timestamp=ns + offset)
        request = trace.request
        times = Timestamps(activities=tuple(trace.activities))
        call = TracedCall(request.model_name, trace.version, request.id, times)
        spans = {trace.number: self._model(root, Child(trace.number, 0, call), trace.stamps, offset)}
        for child in trace.children:
            stamps = stamps_of(child.call.timestamps)
            spans[child.number] = self._model(spans[child.parent], child, stamps, offset)
        root.end(trace.stamps[-1][1] + offset)

    def _model(self, parent: Any, child: Child, stamps: Iterable[Stamp], offset: int) -> Any:
        """Make the span of one model with its `compute` span; return `parent` where there are no stamps."""
        times = [(name, ns + offset) for name, ns in stamps]
        call = child.call
        span = self._child(parent, call.model_name, [each for each in times if each[0] in _MODEL])
        if span is None:
            return parent
        span.set_attributes(
            {
                "triton.model_name": call.model_name,
                "triton.model_version": int(call.model_version or -1),
                "triton.request_id": call.request_id,
                "triton.trace_id": child.number,
                "triton.trace_parent_id": child.parent,
            }
        )
        compute = [each for each in times if each[0] in _COMPUTE]
        inner = self._child(span, "compute", compute)
        if inner is not None:
            inner.end(compute[-1][1])
        end = max(ns for name, ns in times if name in _MODEL)
        self._backend_spans(span, [(name, ns + offset) for name, ns in call.timestamps.activities], end)
        span.end(end)
        return span

    def _backend_spans(self, model: Any, stamps: Iterable[Stamp], end: int) -> None:
        """Make nested spans of the activities that the backend reported, each from `_START` to `_END`.

        Activities in between are events. A span that the backend did not end ends with the model's.
        """
        spans: list[tuple[str | None, Any]] = [(None, model)]
        for activity, ns in stamps:
            name, _, phase = activity.rpartition("_")
            if phase == "START":
                spans.append((name, self._child(spans[-1][1], name, [(activity, ns)])))
                continue
            spans[-1][1].add_event(activity, timestamp=ns)
            if phase == "END" and name == spans[-1][0]:
                spans.pop()[1].end(ns)
        for _, span in reversed(spans[1:]):
            span.end(end)

    def _child(self, parent: Any, name: str, stamps: list[Stamp]) -> Any:
        """Open a span that starts with the first of some activities; return None when there are none."""
        if not stamps:
            return None
        context = api.set_span_in_context(parent)
        span = self._tracer.start_span(name, context, api.SpanKind.SERVER, start_time=stamps[0][1])
        for activity, ns in stamps:
            span.add_event(activity, timestamp=ns)
        return span

    def close(self) -> None:
        """Export the buffered spans; blocks until they are sent or have failed."""
        self._provider.shutdown()


def _url(url: str) -> str:
    if not url:
        return DEFAULT_URL
    return url if "://" in url else f"http://{url}"  # Triton's own examples have no scheme


def _offset() -> int:
    """Return the nanoseconds to add to the monotonic clock for the time of day."""
    return time_ns() - monotonic_ns()
