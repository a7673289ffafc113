"""Log and trace settings over the real fronts, and what the fronts note of requests."""

import asyncio
import json
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException

from app.core.inference import Call, Sink
from app.core.observability.live_settings import LiveSettings
from app.core.observability.trace_settings import TraceSetting, TraceSettings
from app.core.tensors import InferRequest
from app.ingress.rest.front import HttpFront
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.service.interface import InferenceService
from app.ingress.tracing.observer import Observer, RequestOrigin
from app.routing.table import VersionEntry
from tests.hints import tritons
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.grpc_running import Running, int_input
from tests.unit.app.ingress.http_peer import infer_document, request
from tests.unit.app.ingress.rest_calls import Ask, call, error

INFER = "/v2/models/identity/infer"


def tracing(path: Path) -> Observer:
    setting = TraceSetting(("TIMESTAMPS",), 1, file=str(path))
    return Observer(LiveSettings(trace=TraceSettings(setting)))


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    api = build_rest_api(FakeService(), observer=tracing(tmp_path / "t"))
    return lambda method, path, body=b"": asyncio.run(
        call(api, method, path, body if isinstance(body, bytes) else json.dumps(body).encode())
    )


def test_log_settings_over_http(ask: Ask) -> None:
    status, body = ask("POST", "/v2/logging", {"log_verbose_level": 0, "log_info": False})
    assert (status, json.loads(body)["log_info"]) == (200, False)
    assert ask("GET", "/v2/logging") == (status, body)
    assert error(ask("POST", "/v2/logging", {"log_format": "x"})) == (
        503,
        "invalid argument for --log_format, got: x",
    )
    assert error(ask("POST", "/v2/logging", {"log_info": 1}))[0] == 500
    for path in ("/v2/logging", "/v2/trace/setting"):
        assert error(ask("POST", path, b"")) == (
            500,
            "failed to parse the request JSON buffer: The document is empty. at 0",
        )
    assert error(ask("POST", "/v2/logging", {"log_file": "x"}))[0] == 501
    assert error(ask("POST", "/v2/logging", b"[" * 150 + b"]" * 150))[0] == 400
    status, text = error(ask("DELETE", "/v2/logging"))
    assert (status, tritons(text)) == (405, "Method Not Allowed")


def test_trace_settings_over_http(ask: Ask) -> None:
    path = "/v2/models/identity/trace/setting"
    assert json.loads(ask("POST", path, {"trace_rate": "7"})[1])["trace_rate"] == "7"
    assert json.loads(ask("GET", "/v2/trace/setting")[1])["trace_rate"] == "1"
    assert json.loads(ask("POST", path, {"trace_rate": None})[1])["trace_rate"] == "1"
    assert error(ask("POST", path, {"trace_rate": "0"})) == (
        400,
        "Attempting to set invalid trace setting :sample rate must be non-zero",
    )
    assert error(ask("GET", "/v2/models/none/trace/setting")) == (
        400,
        "Request for unknown model : none",
    )
    assert ask("GET", "/v2/models/identity/versions/1/trace/setting")[0] == 404


def test_a_long_request_has_been_coming_for_a_while(tmp_path: Path) -> None:
    async def scenario() -> None:
        watch = tracing(tmp_path / "t")
        front = HttpFront(FakeService(), observer=watch)
        port = await front.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = request(INFER, json.dumps(infer_document([1.0, 2.0])).encode(), "Expect: 100-continue")
        head, body = data.split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert b"100 Continue" in await reader.readline() and await reader.readline() == b"\r\n"
        await asyncio.sleep(0.05)  # the time between the two timestamps below
        writer.write(body)
        assert b"200 OK" in await reader.readline()
        writer.close()
        await front.stop(1.0)
        watch.close()

    asyncio.run(scenario())
    objects = json.loads((tmp_path / "t").read_bytes())
    stamps = {s["name"]: s["ns"] for each in objects for s in each.get("timestamps", ())}
    assert stamps["HTTP_RECV_END"] - stamps["HTTP_RECV_START"] > 30_000_000
    assert stamps["HTTP_SEND_END"] >= stamps["HTTP_SEND_START"] >= stamps["HTTP_RECV_END"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    watch = tracing(tmp_path / "t")
    server = Running(None, watch)
    yield server
    server.close()


def test_grpc(server: Running, tmp_path: Path) -> None:
    with client.InferenceServerClient(server.url) as triton:
        assert triton.get_log_settings().settings["log_format"].string_param == "default"
        reply = triton.update_log_settings({"log_verbose_level": 0, "log_error": False})
        assert not reply.settings["log_error"].bool_param
        assert list(triton.get_trace_settings("echo").settings["trace_level"].value) == ["TIMESTAMPS"]
        reply = triton.update_trace_settings("echo", {"trace_rate": "2"})
        assert list(reply.settings["trace_rate"].value) == ["2"]
        with pytest.raises(InferenceServerException, match="Request for unknown model : unknown"):
            triton.get_trace_settings("unknown")
        with pytest.raises(InferenceServerException, match="trace file location can not be updated"):
            triton.update_trace_settings(settings={"trace_file": "x"})
        for _ in range(2):
            triton.infer("echo", [int_input(5)], request_id="u")
        assert np.array_equal(triton.infer("echo", [int_input(5)]).as_numpy("OUTPUT"), [[5]])
    server.front._observer.close()
    objects = json.loads((tmp_path / "t").read_bytes())
    assert [each["request_id"] for each in objects if "model_name" in each] == ["u"]
    assert objects[1]["timestamps"][0]["name"] == "GRPC_WAITREAD_START"


class Arrivals(Observer):
    """Keeps how requests came in."""

    def __init__(self, path: Path) -> None:
        setting = TraceSetting(("TIMESTAMPS",), 1, file=str(path))
        super().__init__(LiveSettings(trace=TraceSettings(setting)))
        self.traceparents: list[str] = []

    def observe(
        self,
        service: InferenceService,
        entry: VersionEntry,
        request: InferRequest,
        sink: Sink,
        origin: RequestOrigin,
    ) -> Call:
        self.traceparents.append(origin.traceparent)
        return super().observe(service, entry, request, sink, origin)


def test_each_request_of_a_stream_is_part_of_its_clients_trace(tmp_path: Path) -> None:
    watch = Arrivals(tmp_path / "t")
    server = Running(None, watch)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    try:
        with client.InferenceServerClient(server.url) as triton:
            triton.start_stream(lambda result, error: answers.put(error), headers={"traceparent": parent})
            for _ in range(2):
                triton.async_stream_infer("echo", [int_input(5)])
                assert answers.get(timeout=20) is None
    finally:
        server.close()
    assert watch.traceparents == [parent, parent]
