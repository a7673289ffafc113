import asyncio
import base64
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import internal, unavailable
from app.ingress.client_memory.registry import DISABLED, SharedMemory
from app.ingress.rest.openapi.management import build_rest_api
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.rest_calls import Ask, call, error


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def ask(service: FakeService) -> Ask:
    api = build_rest_api(service, max_input_size=10_000)

    def ask(method: str, path: str, body: object = b"") -> tuple[int, bytes]:
        return asyncio.run(
            call(api, method, path, body if isinstance(body, bytes) else json.dumps(body).encode())
        )

    return ask


def test_health_answers_by_status(ask: Ask, service: FakeService) -> None:
    assert ask("GET", "/v2/health/live") == (200, b"")
    assert ask("GET", "/v2/health/ready") == (200, b"")
    assert ask("GET", "/-/healthz") == (200, b"success")
    assert ask("GET", "/v2/models/identity/ready") == (200, b"")
    assert ask("GET", "/v2/models/identity/versions/1/ready") == (200, b"")
    assert error(ask("GET", "/v2/models/none/ready"))[0] == 404
    service.is_ready = False
    assert ask("GET", "/v2/health/ready") == (400, b"")
    assert error(ask("GET", "/-/healthz")) == (503, "not ready")
    assert error(ask("GET", "/v2/models/identity/ready")) == (400, "Model version not ready")
    service.is_exiting = True
    for kind in ("live", "ready"):
        assert error(ask("GET", f"/v2/health/{kind}")) == (503, "Server exiting")


def test_requests_are_logged_at_a_verbose_level(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    name = "app.ingress.rest.openapi.api"
    with caplog.at_level(logging.INFO, name):
        ask("GET", "/v2/health/live")
    assert not caplog.messages
    with caplog.at_level(logging.DEBUG, name):
        ask("POST", "/v2/models/none/versions")
    assert caplog.messages == ["HTTP request: POST /v2/models/none/versions"]


def test_metadata_and_configuration_are_encoded_as_tritons(ask: Ask) -> None:
    assert (
        ask("GET", "/v2")[1]
        == b'{"name":"triton","version":"2.0","extensions":["classification","sequence"]}'
    )
    metadata = (
        b'{"name":"identity","versions":["1"],"platform":"python",'
        b'"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1,-1]}],"outputs":[]}'
    )
    assert ask("GET", "/v2/models/identity") == (200, metadata)
    assert ask("GET", "/v2/models/identity/versions/1") == (200, metadata)
    config = json.loads(ask("GET", "/v2/models/identity/config")[1])
    assert (config["name"], config["max_batch_size"], config["input"][0]["dims"]) == ("identity", 8, [-1])
    assert error(ask("GET", "/v2/models/none/config"))[0] == 404


@pytest.mark.parametrize(
    "path", ["/v2/models/stats", "/v2/models/identity/stats", "/v2/models/identity/versions/1/stats"]
)
def test_statistics_have_tritons_key_order(ask: Ask, path: str) -> None:
    status, body = ask("GET", path)
    (entry,) = json.loads(body)["model_stats"]
    assert status == 200
    assert list(entry) == [
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    ]
    assert list(entry["inference_stats"]) == [
        "success",
        "fail",
        "queue",
        "compute_input",
        "compute_infer",
        "compute_output",
        "cache_hit",
        "cache_miss",
    ]
    assert entry["inference_stats"]["queue"] == {"count": 0, "ns": 0}
    assert entry["response_stats"] == {}


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/any/index"])
def test_repository_index_omits_empty_fields(ask: Ask, service: FakeService, path: str) -> None:
    listed = b'[{"name":"a"},{"name":"b","version":"1","state":"READY"}]'
    for body in (b"", {}, {"ready": True}):
        assert ask("POST", path, body) == (200, listed)
    assert service.indexed == [False, False, True]
    assert error(ask("POST", path, {"ready": 1})) == (500, "Invalid value for 'ready': expected a boolean")


LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


def test_load_passes_configuration_and_files(ask: Ask, service: FakeService) -> None:
    assert ask("POST", LOAD) == (200, b"")
    content = base64.b64encode(b"\0weights").decode()
    assert ask("POST", LOAD, {"parameters": {"config": "{}", "file:1/model.onnx": content}}) == (200, b"")
    assert service.loaded == [("m", None, {}), ("m", "{}", {"1/model.onnx": b"\0weights"})]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"parameters": {"other": "x"}}, 500, "unexpected error on creating Triton parameter"),
        ({"parameters": {"config": 3}}, 500, "attempt to access JSON non-string as string"),
        ({"parameters": []}, 500, "attempt to get members for non-object"),
        (
            {"parameters": {"file:1/m": "%%%"}},
            400,
            "failed to decode the base64 content of load parameter 'file:1/m'",
        ),
        (b"{", 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (b"[" * 101 + b"]" * 101, 400, "JSON nesting depth exceeds maximum allowed limit (100)"),
        (
            b" " * 10_001,
            400,
            "request JSON size of 10001 bytes exceeds the maximum allowed input size of 10000 bytes. "
            "Use --http-max-input-size to increase the limit.",
        ),
    ],
)
def test_malformed_loads_are_refused(
    ask: Ask, service: FakeService, body: Any, status: int, message: str
) -> None:
    assert error(ask("POST", LOAD, body)) == (status, message)
    assert service.loaded == []


@pytest.mark.parametrize("path", [LOAD, UNLOAD, "/v2/repository/index"])
def test_deep_nesting_is_refused_on_every_route(service: FakeService, path: str) -> None:
    body = b'{"parameters":' + b"[" * 250_000 + b"]" * 250_000 + b"}"
    answer = asyncio.run(call(build_rest_api(service), "POST", path, body))
    assert error(answer) == (400, "JSON nesting depth exceeds maximum allowed limit (100)")


@pytest.mark.parametrize("depth", [101, 500])
def test_nesting_that_nobody_reads_is_accepted(ask: Ask, depth: int) -> None:
    """As in Triton, which limits the depth of tensors alone."""
    body = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
    assert ask("POST", "/v2/repository/index", body)[0] == 200


@pytest.mark.parametrize("filler", [b"1,", b"[],", b'{"a":1},'])
def test_many_values_are_refused_before_parsing(service: FakeService, filler: bytes) -> None:
    """Sixty megabytes of them took half a minute, on the event loop."""
    body = b'{"x":[' + filler * 300_000 + b"1]}"
    answer = asyncio.run(call(build_rest_api(service), "POST", "/v2/repository/index", body))
    assert error(answer) == (400, "request JSON has more than 262144 values")


def test_first_of_doubled_keys_counts(ask: Ask, service: FakeService) -> None:
    """As in rapidjson."""
    body = b'{"parameters":{"unload_dependents":true,"unload_dependents":false},"parameters":{}}'
    assert ask("POST", UNLOAD, body)[0] == 200
    assert service.unloaded == [("m", True)]


def test_load_failures_keep_their_code(ask: Ask, service: FakeService) -> None:
    text = "explicit model load / unload is not allowed if polling is enabled"
    service.failure = unavailable(text)
    assert error(ask("POST", LOAD)) == (503, text)
    service.failure = internal("failed to load 'm', failed to poll from model repository")
    assert ask("POST", LOAD)[0] == 500


def test_unload_passes_unload_dependents(ask: Ask, service: FakeService) -> None:
    assert ask("POST", UNLOAD) == (200, b"")
    assert ask("POST", UNLOAD, {"parameters": {"unload_dependents": True}}) == (200, b"")
    assert service.unloaded == [("m", False), ("m", True)]
    assert error(ask("POST", UNLOAD, {"parameters": {"unload_dependents": 1}})) == (
        500,
        "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean",
    )


@pytest.mark.parametrize("action", ["load", "unload"])
def test_repository_name_is_not_supported(ask: Ask, action: str) -> None:
    assert error(ask("POST", f"/v2/repository/r/models/m/{action}")) == (
        501,
        "'repository_name' specification is not supported",
    )


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_shared_memory_is_disabled_by_default(ask: Ask, kind: str) -> None:
    for action in ("region/r/register", "region/r/unregister", "unregister", "register"):
        assert error(ask("POST", f"/v2/{kind}sharedmemory/{action}", b"no JSON")) == (501, DISABLED)
    assert ask("GET", f"/v2/{kind}sharedmemory/status") == (200, b"[]")
    assert error(ask("GET", f"/v2/{kind}sharedmemory/region/r/status")) == (
        404,
        f"Unable to find {kind} shared memory region: 'r'",
    )
    assert ask("POST", f"/v2/{kind}sharedmemory/status")[0] == 405


@pytest.fixture
def key() -> Iterator[Any]:
    path = Path(f"/dev/shm/nereid-rest-{os.getpid()}")
    path.write_bytes(bytes(64))
    yield path.name
    path.unlink()


def test_system_regions_are_registered_listed_and_unregistered(
    ask: Ask, service: FakeService, tmp_path: Path, key: str
) -> None:
    service.shared_memory = SharedMemory(str(tmp_path))
    system = "/v2/systemsharedmemory"
    assert ask("POST", f"{system}/region/a/register", {"key": key, "byte_size": 64}) == (200, b"")
    document = {"key": key, "offset": 8, "byte_size": 8}
    assert ask("POST", f"{system}/region/b/register", document) == (200, b"")
    assert error(ask("POST", f"{system}/region/b/register", document)) == (
        400,
        "shared memory region 'b' already in manager",
    )
    a = {"name": "a", "key": key, "offset": 0, "byte_size": 64}
    b = {"name": "b", "key": key, "offset": 8, "byte_size": 8}
    assert json.loads(ask("GET", f"{system}/status")[1]) == [a, b]
    assert json.loads(ask("GET", f"{system}/region/b/status")[1]) == [b]
    assert ask("POST", f"{system}/region/b/unregister") == (200, b"")
    assert ask("POST", f"{system}/unregister") == (200, b"")
    assert ask("GET", f"{system}/status") == (200, b"[]")


@pytest.mark.parametrize(
    ("path", "document", "status", "text"),
    [
        ("system", {"byte_size": 8}, 400, "Shared memory register request has no 'key' field"),
        ("system", {"key": "k"}, 400, "Shared memory register request has no 'byte_size' field"),
        ("system", [], 400, "Shared memory register request has no 'key' field"),
        (
            "system",
            {"key": "nereid-x", "byte_size": 8},
            500,
            "Unable to open shared memory region: 'nereid-x'",
        ),
        ("cuda", {"byte_size": 8}, 400, "Shared memory register request has no 'raw_handle' field"),
        ("cuda", {"raw_handle": {}}, 400, "Shared memory register request has no 'b64' field"),
        (
            "cuda",
            {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8},
            400,
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        (
            "cuda",
            {"raw_handle": {"b64": "A" * 86 + "=="}, "device_id": 0, "byte_size": 8},
            400,
            "failed to register shared memory region: invalid args",
        ),
    ],
)
def test_malformed_regions_are_refused(
    ask: Ask, service: FakeService, tmp_path: Path, path: str, document: object, status: int, text: str
) -> None:
    service.shared_memory = SharedMemory(str(tmp_path), gpus=0)
    assert error(ask("POST", f"/v2/{path}sharedmemory/region/r/register", document)) == (status, text)
    text = f"'region name' is necessary to register {path} shared memory region"
    assert error(ask("POST", f"/v2/{path}sharedmemory/register", document)) == (400, text)


def test_counters_of_a_model(ask: Ask) -> None:
    status, body = ask("GET", "/v2/nereid/counters?model=identity&version=1")
    assert status == 200
    (found,) = json.loads(body)["versions"]
    assert (found["name"], found["version"]) == ("identity", "1")
    assert found["releases"] == {"full": 2, "delay": 1} and found["pending"] == 3
    assert ask("GET", "/v2/nereid/counters?model=unknown")[0] != 200
