"""Traces as OpenTelemetry spans, sent over OTLP/HTTP by the SDK's own thread. Needs the extra `otel`.

Spans as Triton's: `InferRequest` covers the whole of a request, below it is one named after the model, below
that `compute`; the activities of each are its events.
"""

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

from app.core.tensors import InferRequest
from app.core.trace_settings import TraceSetting
from app.ingress.trace_file import Stamp

DEFAULT_URL: Final = "http://localhost:4318/v1/traces"
_MODEL: Final = ("REQUEST_START", "QUEUE_START", "REQUEST_END")
_COMPUTE: Final = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


class Telemetry:
    """Makes and exports spans. Times are given as `time.monotonic_ns`.

    Args:
        setting: `url`, `resource` and the `bsp_` options of its batch span processor.
    """

    def __init__(self, setting: TraceSetting) -> None:
        options = setting.options
        attributes = dict(
            pair.split("=", 1) for pair in re.split(",", options.get("resource", "")) if "=" in pair
        )
        exporter = OTLPSpanExporter(endpoint=_url(options.get("url", "")))
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "triton-inference-server", **attributes})
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=int(options["bsp_max_queue_size"]),
                schedule_delay_millis=int(options["bsp_schedule_delay"]),
                max_export_batch_size=int(options["bsp_max_export_batch_size"]),
            )
        )
        self._tracer = self._provider.get_tracer("triton-server")
        self._propagator = TraceContextTextMapPropagator()

    def start(self, traceparent: str, begun_ns: int) -> Any:
        """Open the span of a request, below that of its client if there is one."""
        context = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        return self._tracer.start_span(
            "InferRequest", context, api.SpanKind.SERVER, start_time=begun_ns + _offset()
        )

    def traceparent(self, span: Any) -> str:
        """What tells a replica, and who it calls, of a span."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, api.set_span_in_context(span))
        return carrier["traceparent"]

    def finish(
        self, span: Any, number: int, request: InferRequest, version: str, stamps: Iterable[Stamp]
    ) -> None:
        """End the span of a request with what was noted of it."""
        offset = _offset()
        times = [(name, ns + offset) for name, ns in stamps]
        for name, ns in times:
            if name not in _MODEL and name not in _COMPUTE:
                span.add_event(name, timestamp=ns)
        below = self._child(span, request.model_name, [each for each in times if each[0] in _MODEL])
        if below is not None:
            below.set_attributes(
                {
                    "triton.model_name": request.model_name,
                    "triton.model_version": int(version or -1),
                    "triton.request_id": request.id,
                    "triton.trace_id": number,
                    "triton.trace_parent_id": 0,
                }
            )
            compute = [each for each in times if each[0] in _COMPUTE]
            inner = self._child(below, "compute", compute)
            if inner is not None:
                inner.end(compute[-1][1])
            below.end(max(ns for name, ns in times if name in _MODEL))
        span.end(times[-1][1])

    def _child(self, parent: Any, name: str, stamps: list[Stamp]) -> Any:
        """An open span that begins with the first of some activities; None when there are none."""
        if not stamps:
            return None
        context = api.set_span_in_context(parent)
        span = self._tracer.start_span(name, context, api.SpanKind.SERVER, start_time=stamps[0][1])
        for activity, ns in stamps:
            span.add_event(activity, timestamp=ns)
        return span

    def close(self) -> None:
        """Export what is held; blocks until it is sent, or given up."""
        self._provider.shutdown()


def _url(url: str) -> str:
    if not url:
        return DEFAULT_URL
    return url if "://" in url else f"http://{url}"  # Triton's own examples have no scheme


def _offset() -> int:
    """Nanoseconds from the monotonic clock to the time of day."""
    return time_ns() - monotonic_ns()
