"""Requests other than inference, with tokens: who may make them, and the audit of changes."""

import socket
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import pytest

from app.access.audit import Audit
from app.core.errors import invalid_arg
from app.ingress.access.guard import Guard
from app.tape.browsing import TapeBrowser
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.access.guarded import MODULES, guarded, lines, of
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts, Running, refusal

UNAUTHENTICATED = {"http": "401", "grpc": "StatusCode.UNAUTHENTICATED"}
DENIED = {"http": "403", "grpc": "StatusCode.PERMISSION_DENIED"}

LOG = {"log_verbose_level": 0}
READS: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "server metadata": lambda client, headers: client.get_server_metadata(headers=headers),
    "model metadata": lambda client, headers: client.get_model_metadata("identity", headers=headers),
    "model config": lambda client, headers: client.get_model_config("identity", headers=headers),
    "statistics": lambda client, headers: client.get_inference_statistics("identity", headers=headers),
    "all statistics": lambda client, headers: client.get_inference_statistics(headers=headers),
}
MANAGES: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "index": lambda client, headers: client.get_model_repository_index(headers=headers),
    "load": lambda client, headers: client.load_model("b", headers=headers),
    "unload": lambda client, headers: client.unload_model("b", headers=headers),
    "log": lambda client, headers: client.get_log_settings(headers=headers),
    "trace": lambda client, headers: client.get_trace_settings(headers=headers),
    "shared memory": lambda client, headers: client.get_system_shared_memory_status(headers=headers),
    "change log": lambda client, headers: client.update_log_settings(LOG, headers=headers),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_needs_a_token_for_the_model(client: Any, protocol: str, read: Any) -> None:
    read(client, of("infer"))
    read(client, of("all"))
    assert refusal(partial(read, client, {}))[0] == UNAUTHENTICATED[protocol]


def test_readiness_of_a_model_needs_a_token(client: Any, protocol: str) -> None:
    assert client.is_model_ready("identity", headers=of("infer"))
    if protocol == "http":  # where the client tells any status but 200 as not ready
        assert not client.is_model_ready("identity")
    else:
        assert refusal(partial(client.is_model_ready, "identity"))[0] == UNAUTHENTICATED[protocol]


@pytest.mark.parametrize("manage", MANAGES.values(), ids=MANAGES)
def test_managing_needs_the_scope(client: Any, protocol: str, manage: Any) -> None:
    assert refusal(partial(manage, client, {}))[0] == UNAUTHENTICATED[protocol]
    status, text = refusal(partial(manage, client, of("infer")))
    assert (status, text) == (DENIED[protocol], "the token 'infer' lacks the scope manage")
    manage(client, of("manage"))


@pytest.mark.parametrize("name", ["get_model_metadata", "get_model_config", "is_model_ready", "load_model"])
def test_models_of_others_are_out_of_reach(running: Running, client: Any, protocol: str, name: str) -> None:
    if (protocol, name) == ("http", "is_model_ready"):  # tells only that it is not
        assert not client.is_model_ready("identity", headers=of("other"))
        return
    call = partial(getattr(client, name), "identity", headers=of("other"))
    assert refusal(call) == (DENIED[protocol], "the token 'other-models' is not for the model 'identity'")
    assert running.service.loaded == []


def test_lists_have_the_models_of_the_token_only(client: Any, protocol: str) -> None:
    def names(headers: dict[str, str]) -> tuple[list[str], list[str]]:
        index = client.get_model_repository_index(headers=dict(headers))
        statistics = client.get_inference_statistics(headers=dict(headers))
        if protocol == "http":
            return [m["name"] for m in index], [m["name"] for m in statistics["model_stats"]]
        return [m.name for m in index.models], [m.name for m in statistics.model_stats]

    assert names(of("all")) == (["a", "b"], ["identity"])
    assert names(of("other")) == (["b"], [])


def test_probes_need_no_token(running: Running, client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    with grpc.insecure_channel(running.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=WAIT_S) == b"\x08\x01"
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=WAIT_S)
        assert next(iter(watch)) == b"\x08\x01"
        watch.cancel()


def test_reflection_needs_a_token(fronts: Fronts) -> None:
    path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
    with (
        guarded(fronts, grpc_reflection=True) as (running, _),
        grpc.insecure_channel(running.grpc) as channel,
    ):
        reflect = channel.stream_stream(path)
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(reflect(iter([b""]), timeout=WAIT_S)))
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert next(iter(reflect(iter([b":\x00"]), timeout=WAIT_S, metadata=[("authorization", "infer")])))


@pytest.mark.parametrize("path", ["/", "/docs", "/v2", "/v2/models", "/v2/nothing", "/v2/models/a/infer"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_nothing_else_answers_without_a_token(running: Running, path: str, method: str) -> None:
    connection = HTTPConnection(running.http, timeout=WAIT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == (404 if path == "/v2/nothing" else 401)
    finally:
        connection.close()


@pytest.mark.parametrize(("token", "status"), [("all", 200), ("infer", 200), ("other", 403)])
def test_counters_need_a_token_for_the_model(running: Running, token: str, status: int) -> None:
    connection = HTTPConnection(running.http, timeout=WAIT_S)
    try:
        connection.request("GET", "/v2/nereid/counters?model=identity", headers=of(token))
        assert connection.getresponse().status == status
    finally:
        connection.close()


def test_metrics_need_their_scope(fronts: Fronts) -> None:
    port = free_port()
    with guarded(fronts, allow_metrics=True, metrics_port=port) as (_, grants):
        connection = HTTPConnection(f"127.0.0.1:{port}", timeout=WAIT_S)
        for headers, status in (({}, 401), (of("infer"), 403), (of("all"), 200)):
            connection.request("GET", "/metrics", headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == status
        connection.close()
        assert (grants.counted["all"].ok, grants.counted["infer"].denied) == (1, 1)


def test_changes_are_recorded_with_who_made_them(
    running: Running, client: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client.load_model("b", headers=of("manage"))
    client.unload_model("b", headers=of("all"))
    client.update_log_settings({"log_verbose_level": 0}, headers=of("manage"))
    client.update_trace_settings(None, {"trace_count": "5"}, headers=of("manage"))
    # Client shared memory is off.
    refusal(partial(client.register_system_shared_memory, "r", "/k", 4, headers=of("all")))
    refusal(partial(client.unregister_cuda_shared_memory, headers=of("all")))
    for read in ("get_model_repository_index", "get_log_settings", "get_trace_settings"):
        getattr(client, read)(headers=of("all"))
    found = lines(caplog)
    assert {line.pop("protocol") for line in found} == {protocol}
    assert [(line["action"], line.get("subject", ""), line["who"], line["outcome"]) for line in found] == [
        ("load", "b", "manage", "ok"),
        ("unload", "b", "all", "ok"),
        ("change-log-settings", "", "manage", "ok"),
        ("change-trace-settings", "", "manage", "ok"),
        ("register-system-memory", "r", "all", "failed"),
        ("unregister-cuda-memory", "", "all", "failed"),
    ]
    assert running.service.asked_by == ["manage", "all"], "for the history of the model"


def test_refused_and_failed_changes_are_recorded(
    running: Running, client: Any, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    refusal(partial(client.load_model, "b"))
    refusal(partial(client.load_model, "b", headers=of("infer")))
    refusal(partial(client.load_model, "a", headers=of("other")))
    running.service.failure = invalid_arg("no such\nmodel")
    refusal(partial(client.load_model, "b", headers=of("all")))
    # What a gRPC call is about is in its message, which a client without the right does not get to send.
    named = "b" if protocol == "http" else ""
    found = [
        (line.get("subject", ""), line["who"], line["outcome"], line["reason"][:20]) for line in lines(caplog)
    ]
    assert found == [
        (named, "anonymous", "denied", "a valid token is req"),
        (named, "infer", "denied", "the token 'infer' la"),
        ("a", "other-models", "denied", "the token 'other-mod"),
        ("b", "all", "failed", "no such\nmodel"),
    ]


def test_a_web_page_that_is_refused_is_recorded(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    connection = HTTPConnection(running.http, timeout=WAIT_S)
    connection.request(
        "POST", "/v2/repository/models/b/load", headers={"Origin": "http://evil.example", **of("manage")}
    )
    assert connection.getresponse().status == 403
    connection.close()
    (line,) = lines(caplog)
    assert (line["outcome"], line["who"], line["subject"]) == ("denied", "manage", "b")
    assert running.service.loaded == []


def test_changes_are_recorded_without_tokens_too(
    fronts: Fronts, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with (
        fronts(guard=Guard(None, Audit())) as running,
        MODULES[protocol].InferenceServerClient(getattr(running, protocol)) as client,
    ):
        client.load_model("b")
        client.get_model_repository_index()
        assert client.get_model_metadata("identity")
    assert lines(caplog) == [
        {"action": "load", "subject": "b", "who": "anonymous", "protocol": protocol, "outcome": "ok"}
    ]


def test_a_client_that_sends_no_body_gets_its_answer(running: Running) -> None:
    """A refused upload is answered, and what was sent of it is not taken for another request."""
    with socket.create_connection(("127.0.0.1", running.http_port), WAIT_S) as connection:
        head = b"POST /v2/repository/models/b/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"
        connection.sendall(head + b"{}  " + b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        while b"200 OK" not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 401 Unauthorized\r\n")


class Recording(FakeService):
    """Has a tape."""

    def tape(self) -> TapeBrowser:
        return TapeBrowser(Path())


@pytest.mark.parametrize(
    ("token", "path", "status", "outcome"),
    [
        ("infer", "/v2/models/identity/tape/setting", 403, "denied"),
        ("manage", "/v2/models/identity/tape/setting", 200, "ok"),
        ("manage", "/v2/nereid/tape/setting", 200, "ok"),
        ("other", "/v2/models/identity/tape/setting", 403, "denied"),
        ("other", "/v2/nereid/tape/setting", 403, "denied"),
    ],
)
def test_who_may_switch_the_tape(
    fronts: Fronts, caplog: pytest.LogCaptureFixture, token: str, path: str, status: int, outcome: str
) -> None:
    caplog.set_level("INFO")
    with guarded(fronts, service=Recording()) as (running, _):
        connection = HTTPConnection(running.http, timeout=WAIT_S)
        try:
            connection.request("POST", path, b'{"recording": false}', headers=of(token))
            assert connection.getresponse().status == status
        finally:
            connection.close()
    (line,) = lines(caplog)
    assert (line["action"], line["outcome"]) == ("change-tape-settings", outcome)
    assert line.get("subject", "") == ("identity" if "identity" in path else "")
