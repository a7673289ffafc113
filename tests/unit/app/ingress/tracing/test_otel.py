"""Spans as a collector receives them over OTLP/HTTP."""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from app.core.errors import ErrorCode, Failure, FailureReason
from app.core.observability import trace_settings
from app.core.observability.live_settings import LiveSettings
from app.core.observability.trace_settings import TraceSettings, parse_trace_config
from app.core.tensors import InferRequest, InferResponse, Tensor, Timestamps, TracedCall, failed
from app.ingress.tracing import otel
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from tests.server import wait_until
from tests.unit.app.ingress.tracing.observed import observe

PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"
REQUEST = InferRequest("m", "", (Tensor.from_array("IN", np.ones(1, np.float32)),), id="r1")


class Collector:
    """A collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        keep = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                keep.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"127.0.0.1:{self.server.server_port}/v1/traces"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> dict[str, Any]:
        """Spans by name."""
        return {
            span.name: span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def observer(collector: Collector, *entries: str) -> Observer:
    setting = parse_trace_config(
        ["mode=opentelemetry", "level=TIMESTAMPS", f"opentelemetry,url={collector.url}",
         "opentelemetry,resource=service.name=mine", *entries]
    )  # fmt: skip
    return Observer(LiveSettings(trace=TraceSettings(setting)))


def infer(watch: Observer, traceparent: str = "") -> InferRequest:
    observed, sink = observe(watch, REQUEST, lambda _: None, RequestOrigin("http", 50, traceparent))
    sink(InferResponse("m", "3", timestamps=Timestamps(*range(100, 107))))
    return observed


def test_queue_may_be_smaller_than_a_batch(collector: Collector) -> None:
    watch = observer(collector, "rate=1", "opentelemetry,bsp_max_queue_size=9")
    infer(watch)
    watch.close()
    assert len(collector.spans()) == 3


def test_export_without_a_delay(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    hour_ms = 3_600_000
    monkeypatch.setitem(trace_settings._OPTIONS, "bsp_schedule_delay", str(hour_ms))
    monkeypatch.setattr(otel, "_IDLE_MS", hour_ms)
    watch = observer(collector, "rate=1", "opentelemetry,bsp_schedule_delay=0")
    infer(watch)
    wait_until(lambda: len(collector.spans()) == 3, 60, "it is exported")
    watch.close()


def test_the_sdk_speaks_in_the_log(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # once however many traces are exported
        observer(collector).close()
    sdk = logging.getLogger("opentelemetry.sdk.mine")  # its own says the same but once a minute
    sdk.warning("Queue full, dropping %s.", "Span")
    sdk.error("Failed to export span batch code: 500")
    assert [
        (record.levelname, record.message) for record in caplog.records if record.name.startswith("app")
    ] == [
        ("WARNING", "BatchSpanProcessor queue is full - dropping span."),
        ("ERROR", "Failed to export span batch code: 500"),
    ]


def test_spans_are_tritons(collector: Collector) -> None:
    watch = observer(collector, "rate=1")
    observed = infer(watch, PARENT)
    watch.close()
    spans = collector.spans()
    assert spans.keys() == {"InferRequest", "m", "compute"}
    root, model, compute = spans["InferRequest"], spans["m"], spans["compute"]
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert (model.parent_span_id, compute.parent_span_id) == (root.span_id, model.span_id)
    assert observed.trace == f"00-{'ab' * 16}-{root.span_id.hex()}-01"
    assert [event.name for event in root.events][:2] == ["HTTP_RECV_START", "HTTP_RECV_END"]
    assert [event.name for event in model.events] == ["REQUEST_START", "QUEUE_START", "REQUEST_END"]
    assert compute.end_time_unix_nano - compute.start_time_unix_nano == 3
    attributes = {each.key: each.value for each in model.attributes}
    assert attributes["triton.model_name"].string_value == "m"
    assert attributes["triton.model_version"].int_value == 3
    assert attributes["triton.request_id"].string_value == "r1"
    resource = collector.requests[0].resource_spans[0].resource
    assert {a.key: a.value.string_value for a in resource.attributes}["service.name"] == "mine"


def test_cancelled_request_has_the_span_of_its_model(collector: Collector) -> None:
    watch = observer(collector, "rate=1")
    _, sink = observe(watch, REQUEST, lambda _: None, RequestOrigin("http", 50))
    sink(failed(Failure(ErrorCode.CANCELLED, "", FailureReason.CANCELED), "r1"))
    watch.close()
    spans = collector.spans()
    assert set(spans) == {"InferRequest", "m"}, "whether it was executed is not known"
    assert spans["m"].parent_span_id == spans["InferRequest"].span_id
    assert [event.name for event in spans["m"].events] == ["REQUEST_START", "REQUEST_END"]


def test_one_trace_from_the_client_to_what_a_step_calls(collector: Collector) -> None:
    watch = observer(collector, "rate=0")
    called = TracedCall("called", "1", "", Timestamps(103, request_end=104))
    step = TracedCall("step", "2", "r1", Timestamps(*range(101, 108)), (called,))
    _, sink = observe(watch, REQUEST, lambda _: None, RequestOrigin("grpc", 50, PARENT))
    sink(InferResponse("m", "3", timestamps=Timestamps(100, 100, request_end=108), calls=(step,)))
    watch.close()
    spans = collector.spans()
    assert {span.trace_id.hex() for span in spans.values()} == {"ab" * 16}
    path = ["InferRequest", "m", "step", "called"]
    assert [spans[name].parent_span_id for name in path[1:]] == [spans[name].span_id for name in path[:-1]]
    assert spans["compute"].parent_span_id == spans["step"].span_id
    attributes = {each.key: each.value.int_value for each in spans["called"].attributes}
    assert (attributes["triton.trace_id"], attributes["triton.trace_parent_id"]) == (3, 2)


def ended(stamps: list[tuple[str, int]], collector: Collector) -> dict[str, tuple[str, int, int, list[str]]]:
    """Spans that a backend's activities have led to: parent, begin and end from the model's, and events."""
    watch = observer(collector, "rate=1")
    _, sink = observe(watch, REQUEST, lambda _: None, RequestOrigin("http", 50))
    times = Timestamps(100, 101, 102, 103, 104, 105, 200, tuple(stamps))
    sink(InferResponse("m", "3", timestamps=times))
    watch.close()
    spans = collector.spans()
    names = {span.span_id: span.name for span in spans.values()}
    zero = spans["m"].start_time_unix_nano - 100
    return {
        name: (
            names.get(span.parent_span_id, ""),
            span.start_time_unix_nano - zero,
            span.end_time_unix_nano - zero,
            [event.name for event in span.events],
        )
        for name, span in spans.items()
    }


def test_activities_of_a_backend_are_spans_and_events(collector: Collector) -> None:
    stamps = [("A_START", 110), ("B_START", 111), ("ONCE", 112), ("B_END", 113), ("A_END", 114), ("X", 115)]
    spans = ended(stamps, collector)
    assert spans["A"] == ("m", 110, 114, ["A_START", "A_END"])
    assert spans["B"] == ("A", 111, 113, ["B_START", "ONCE", "B_END"])
    assert spans["m"] == ("InferRequest", 100, 200, ["REQUEST_START", "QUEUE_START", "REQUEST_END", "X"])
    assert spans["compute"][0] == "m" and "X" not in spans["InferRequest"][3]


def test_spans_that_a_backend_does_not_end(collector: Collector) -> None:
    spans = ended([("A_END", 110), ("END", 111), ("A_START", 112), ("B_START", 113)], collector)
    assert spans["A"] == ("m", 112, 200, ["A_START"])
    assert spans["B"] == ("A", 113, 200, ["B_START"])
    assert spans["m"][3][3:] == ["A_END", "END"]


def test_rate_zero_traces_what_its_client_traces(collector: Collector) -> None:
    watch = observer(collector, "rate=0")
    assert not infer(watch).trace
    assert not infer(watch, "00-nonsense").trace
    assert infer(watch, PARENT).trace
    watch.close()
    assert "InferRequest" in collector.spans()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.settings.flag.parsers.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install .*\[otel\]'"):
        from_args({"model_repository": ".", "trace_config": "mode=opentelemetry"})
