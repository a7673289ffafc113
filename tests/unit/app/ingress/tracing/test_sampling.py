"""Sampling, the trace format, trace files; requests observed from a front's side."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from app.core.errors import InferError, not_found, unavailable
from app.core.inference import Sink
from app.core.observability.live_settings import LiveSettings
from app.core.observability.log import LogConfig
from app.core.observability.trace_settings import GLOBAL, TraceSetting, TraceSettings
from app.core.observability.traced import traced_call
from app.core.tensors import (
    TENSORS_TRACE,
    UNNAMED_TRACE,
    InferRequest,
    InferResponse,
    RegionSlice,
    Tensor,
    Timestamps,
    TracedCall,
    failed,
)
from app.ingress.service.interface import InferenceService
from app.ingress.tracing import sampling, trace
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.ingress.tracing.sampling import TraceScope
from app.ingress.tracing.trace import stamps_of
from app.routing.table import VersionEntry
from tests.unit.app.ingress.tracing.observed import ENTRY, observe

REQUEST = InferRequest("m", "", (Tensor.from_array("IN", np.array([[1, -2]], np.int32)),), id="r1")
ORIGIN = RequestOrigin("http", 50)


def response(start: int = 100, **fields: Any) -> InferResponse:
    times = Timestamps(*range(start, start + 7))
    outputs = (Tensor.from_array("OUT", np.array([0.5, 3.0], np.float32)),)
    return InferResponse("m", "3", outputs, timestamps=times, **fields)


def unexpected(response: InferResponse) -> None:
    raise AssertionError(response)


def wait(event: threading.Event) -> None:
    event.wait(30)


def observer(path: Path, level: tuple[str, ...] = ("TIMESTAMPS",), **setting: Any) -> Observer:
    setting = {"rate": 1, **setting}
    return Observer(LiveSettings(trace=TraceSettings(TraceSetting(level, file=str(path), **setting))))


def infer(watch: Observer, request: InferRequest = REQUEST, origin: RequestOrigin = ORIGIN) -> InferRequest:
    """Send a request through an observer; return the request that the service gets."""
    answers: list[InferResponse] = []
    observed, sink = observe(watch, request, answers.append, origin)
    sink(response())
    assert len(answers) == 1
    return observed


def names(path: Path) -> list[str]:
    objects = json.loads(path.read_bytes())
    return [stamp["name"] for each in objects for stamp in each.get("timestamps", ())]


def test_trace_file_has_tritons_objects(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    watch = observer(path)
    assert infer(watch).trace == UNNAMED_TRACE
    watch.close()
    objects = json.loads(path.read_bytes())
    assert objects[0] == {"id": 1, "model_name": "m", "model_version": 3, "request_id": "r1"}
    assert objects[1] == {"id": 1, "timestamps": [{"name": "HTTP_RECV_START", "ns": 50}]}
    assert all(set(each) == {"id", "timestamps"} for each in objects[1:])
    assert names(path) == [
        "HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START",
        "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END", "REQUEST_END",
        "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END",
    ]  # fmt: skip


def test_grpc_requests_have_the_activities_of_grpc(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t")
    infer(watch, origin=RequestOrigin("grpc", 50))
    watch.close()
    assert names(tmp_path / "t")[:2] == ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END"]
    assert names(tmp_path / "t")[-2:] == ["GRPC_SEND_START", "GRPC_SEND_END"]


def test_tensors_are_printed(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", level=("TENSORS",))
    infer(watch)
    text = InferRequest("m", "1", (Tensor.from_array("S", np.array([b'a"', b"b"], object)),))
    infer(watch, text)
    watch.close()
    objects = json.loads((tmp_path / "t").read_bytes())
    assert objects[1] == {
        "id": 1,
        "activity": "TENSOR_QUEUE_INPUT",
        "tensor": {"name": "IN", "data": "1,-2", "shape": "1,2", "dtype": "INT32"},
    }
    assert objects[2]["activity"] == "TENSOR_BACKEND_OUTPUT"
    assert objects[2]["tensor"] == {"name": "OUT", "data": "0.5,3", "shape": "2", "dtype": "FP32"}
    assert objects[4]["tensor"]["data"] == '"a"","b"'
    assert not names(tmp_path / "t")


def test_sampling_follows_rate_and_count() -> None:
    scope = TraceScope(TraceSetting(("TIMESTAMPS",), 3, 2, file="f"), None)
    assert [scope.sample() for _ in range(10)] == [False, False, True] * 2 + [False] * 4
    assert scope.remaining == 0
    assert not any(TraceScope(TraceSetting((), 1, file="f"), None).sample() for _ in range(3))
    assert not any(TraceScope(TraceSetting(("TENSORS",), 1), None).sample() for _ in range(3))


def test_log_frequency_makes_numbered_files(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", log_frequency=2)
    for _ in range(5):
        infer(watch)
    watch.close()
    counts = {path.name: names(path).count("REQUEST_START") for path in tmp_path.iterdir()}
    assert counts == {"t.0": 2, "t.1": 2, "t.2": 1}


def test_last_trace_of_a_count_is_saved_at_once(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", count=2)
    for _ in range(3):
        infer(watch)
    assert watch.trace_setting().count == 0
    watch.close()
    assert {path.name for path in tmp_path.iterdir()} == {"t.0"}
    assert names(tmp_path / "t.0").count("REQUEST_END") == 2


def test_refused_request_is_traced(tmp_path: Path) -> None:
    """It counts as a trace; without it the last file would never be complete."""

    class Service:
        def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> None:
            raise unavailable("no replica")

    watch = observer(tmp_path / "t", count=2)
    with pytest.raises(InferError, match="no replica"):
        watch.observe(cast(InferenceService, Service()), ENTRY, REQUEST, unexpected, ORIGIN)
    infer(watch)
    watch._tracer._writer.submit(lambda: None).result(30)
    assert names(tmp_path / "t.0").count("HTTP_SEND_END") == 2
    watch.close()


async def test_change_saves_buffered_traces_and_keeps_other_scopes(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", rate=2)
    watch.apply(LiveSettings(trace=watch.live.trace.changed("other", {"rate": 1})))
    infer(watch)
    assert (await watch.change_trace("other", {"rate": 5})).rate == 5
    assert watch.trace_setting().rate == 2
    assert infer(watch).trace  # the second of the global scope, which the change has not begun anew
    held = observe(watch, REQUEST, lambda _: None, ORIGIN)[1]
    await watch.change_trace(GLOBAL, {"level": ()})
    assert not watch.enabled
    held(response())
    watch.close()
    assert names(tmp_path / "t").count("REQUEST_START") == 1


def test_untraced_request_is_passed_unchanged(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", rate=2)
    sink = print
    assert observe(watch, REQUEST, sink, ORIGIN) == (REQUEST, sink)
    assert not Observer(LiveSettings()).enabled
    watch.close()
    assert not list(tmp_path.iterdir())


def test_unwritable_file_does_not_fail_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = observer(tmp_path / "none" / "t", log_frequency=1)
    infer(watch)
    infer(watch)
    watch.close()
    assert [each.message for each in caplog.records].count(caplog.records[0].message) == 1
    assert "cannot save traces" in caplog.text


def test_times_of_another_machine_are_shifted() -> None:
    times = Timestamps(1_000_000, 1_000_000, 1_000_010, 0, 0, 0, 1_000_040)
    inner = TracedCall("n", "1", "", Timestamps(1_000_011, request_end=1_000_019))
    answer = InferResponse("m", "3", timestamps=times, calls=(inner,))
    call = traced_call(REQUEST, answer, 500, 600)
    assert stamps_of(call.timestamps) == [
        ("REQUEST_START", 530), ("QUEUE_START", 530), ("COMPUTE_START", 540), ("REQUEST_END", 570)
    ]  # fmt: skip
    assert stamps_of(call.calls[0].timestamps) == [("REQUEST_START", 541), ("REQUEST_END", 549)]
    near = traced_call(REQUEST, answer, 999_999, 1_000_050)
    assert (near.timestamps, near.calls) == (times, (inner,))


def test_activities_of_a_backend_are_saved(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t")
    step = TracedCall("step", "2", "", Timestamps(102, request_end=105, activities=(("INNER", 103),)))
    _, sink = observe(watch, REQUEST, lambda _: None, ORIGIN)
    sink(InferResponse("m", "3", timestamps=Timestamps(100, 100, activities=(("MINE", 101),)), calls=(step,)))
    watch.close()
    saved = json.loads((tmp_path / "t").read_bytes())
    stamps = {(each["id"], s["name"]): s["ns"] for each in saved for s in each.get("timestamps", ())}
    start = stamps[1, "REQUEST_START"]
    assert (stamps[1, "MINE"] - start, stamps[2, "INNER"] - start) == (1, 3)


def test_call_that_failed_early_has_the_times_of_its_caller() -> None:
    call = traced_call(REQUEST, failed(unavailable("busy")), 500, 600)
    assert stamps_of(call.timestamps) == [("REQUEST_START", 500), ("REQUEST_END", 600)]


def test_calls_of_a_request_are_saved_as_children(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t")
    infer(watch)
    inner = TracedCall("inner", "2", "", Timestamps(103, request_end=104))
    outer = TracedCall("outer", "1", "r1", Timestamps(102, request_end=105), (inner,))
    _, sink = observe(watch, REQUEST, lambda _: None, ORIGIN)
    sink(msgspec.structs.replace(response(), calls=(outer,)))
    infer(watch)
    watch.close()
    headers = [each for each in json.loads((tmp_path / "t").read_bytes()) if "model_name" in each]
    assert [(each["id"], each["model_name"], each.get("parent_id")) for each in headers] == [
        (1, "m", None), (2, "m", None), (3, "outer", 2), (4, "inner", 3), (5, "m", None)
    ]  # fmt: skip
    assert (headers[2]["model_version"], headers[2]["request_id"]) == (1, "r1")
    assert "request_id" not in headers[3]


def test_tensors_of_calls_are_saved(tmp_path: Path) -> None:
    watch = observer(tmp_path / "t", level=("TENSORS",))
    shared = Tensor("A", "INT32", (1,), RegionSlice("r", 0, 4))
    inner = TracedCall("inner", "2", "", Timestamps(), (), (shared,), (Tensor("C", "INT32", (9,), b""),))
    one, two = (Tensor.from_array(name, np.array([1, 2], np.int32)) for name in ("X", "Y"))
    outer = TracedCall("outer", "1", "", Timestamps(), (inner,), (one,), (two,))
    request, sink = observe(watch, REQUEST, lambda _: None, ORIGIN)
    assert request.trace == TENSORS_TRACE
    sink(InferResponse("m", "3", timestamps=Timestamps(), calls=(outer,)))
    watch.close()
    objects = [each for each in json.loads((tmp_path / "t").read_bytes()) if each["id"] > 1]
    tensors = [
        (each["id"], each["activity"], *each["tensor"].values()) for each in objects if "tensor" in each
    ]
    assert tensors == [
        (2, "TENSOR_QUEUE_INPUT", "X", "1,2", "2", "INT32"),
        (2, "TENSOR_BACKEND_OUTPUT", "Y", "1,2", "2", "INT32"),
        (3, "TENSOR_QUEUE_INPUT", "A", "", "1", "INT32"),
        (3, "TENSOR_BACKEND_OUTPUT", "C", "", "9", "INT32"),
    ]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(each.getMessage()) for each in caplog.records if hasattr(each, "verbatim")]


@pytest.fixture
def logging_observer(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    caplog.set_level(logging.DEBUG, "app")
    watch = Observer(LiveSettings(LogConfig(log_verbose_level=1)))
    assert watch.enabled
    yield watch
    watch.close()


def test_each_request_is_logged(logging_observer: Observer, caplog: pytest.LogCaptureFixture) -> None:
    infer(logging_observer, origin=RequestOrigin("grpc", 50, "00-ab"))
    (line,) = lines(caplog)
    total = line.pop("total_us")
    assert total > 0
    assert line == {
        "event": "request", "protocol": "grpc", "model": "m", "version": "3", "request_id": "r1",
        "status": "OK", "queue_us": 0, "compute_input_us": 0, "compute_infer_us": 0,
        "compute_output_us": 0, "traceparent": "00-ab",
    }  # fmt: skip


def test_failures_are_logged(logging_observer: Observer, caplog: pytest.LogCaptureFixture) -> None:
    class Service:
        def submit(self, entry: VersionEntry, request: InferRequest, sink: Sink) -> None:
            raise not_found("no\nmodel")

    with pytest.raises(InferError):
        logging_observer.observe(cast(InferenceService, Service()), ENTRY, REQUEST, print, ORIGIN)
    (line,) = lines(caplog)
    assert (line["status"], line["model"]) == ("NOT_FOUND", "m")
    assert "\n" not in caplog.records[0].getMessage()
    caplog.clear()
    _, sink = observe(logging_observer, REQUEST, lambda _: None, ORIGIN)
    sink(failed(unavailable("gone")))
    assert lines(caplog)[0]["error"] == "gone"


def test_buffered_traces_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_MAX_BUFFERED_BYTES", 1000)
    watch = observer(tmp_path / "t", log_frequency=1_000_000)
    for _ in range(10):
        infer(watch)
    watch._tracer._writer.submit(lambda: None).result(30)
    saved = sorted(tmp_path.glob("t.*"))
    watch.close()
    assert saved and json.loads(saved[0].read_bytes())[0]["request_id"] == "r1"


def test_tensors_in_the_writers_queue_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_MAX_QUEUED_BYTES", 30)
    watch = observer(tmp_path / "t", level=("TIMESTAMPS", "TENSORS"))
    may_go = threading.Event()
    watch._tracer._run_in_writer(lambda: wait(may_go))
    for number in range(5):  # of 16 bytes each
        infer(watch, msgspec.structs.replace(REQUEST, id=f"r{number}"))
    may_go.set()
    watch._tracer._writer.submit(lambda: None).result(30)
    infer(watch, msgspec.structs.replace(REQUEST, id="later"))
    watch.close()
    found = [each.get("request_id") for each in json.loads((tmp_path / "t").read_bytes())]
    assert [name for name in found if name] == ["r0", "r1", "later"]


def test_trace_of_a_stream_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_MAX_OUTPUT_BYTES", 20)  # an output has 8
    monkeypatch.setattr(trace, "_MAX_STAMPS", 20)
    watch = observer(tmp_path / "t", level=("TIMESTAMPS", "TENSORS"))
    _, sink = observe(watch, REQUEST, lambda _: None, ORIGIN)
    for _ in range(1000):
        sink(msgspec.structs.replace(response(), final=False, timestamps=None))
    sink(response())
    watch.close()
    objects = json.loads((tmp_path / "t").read_bytes())
    assert [each.get("activity") for each in objects].count("TENSOR_BACKEND_OUTPUT") == 3
    assert len(names(tmp_path / "t")) == 30 and names(tmp_path / "t")[-1] == "HTTP_SEND_END"
