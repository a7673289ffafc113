"""Rollouts over HTTP and gRPC: the same answers and errors, for clients that may manage models."""

import json
import urllib.request
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from app.core.errors import not_found
from app.core.rollout.status import RolloutChange
from app.protocol.grpc import rollout as messages
from tests.rollout_calls import ASK
from tests.unit.app.ingress.access.guarded import guarded, lines, of
from tests.unit.app.ingress.running_fronts import Fronts, Running

INVALID = {"http": "400", "grpc": "INVALID_ARGUMENT"}


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(running: Running, protocol: str, change: Any = None, **options: Any) -> tuple[str, Any]:
    return ASK[protocol](getattr(running, protocol), "identity", change, **options)


def test_both_protocols_say_the_same_of_a_rollout(fronts: Fronts) -> None:
    with fronts() as running:
        (status, found), (code, same) = (ask(running, name) for name in ("http", "grpc"))
    assert (status, code) == ("200", "OK")
    assert found == same
    assert (found["state"], found["percent"], found["candidate"]) == ("step", 25.0, 2)
    assert found["total"]["candidate"] | {"latencies": {}} == {
        "ok": 1980,
        "failed": 20,
        "refused": 0,
        "cancelled": 0,
        "rescued": 18,
        "late": 0,
        "prompt": 0,
        "latencies": {},
        "executions": {},
        "reasons": {},
        "classes": {},
    }
    assert found["figures"]["candidate"]["error_rate"]["value"] == 0.01
    assert set(found["figures"]["stable"]["latency_ms"]) == {"0.5", "0.9", "0.95", "0.99"}
    assert found["figures"]["agreement"]["value"] == 0.98


def test_both_protocols_say_the_same_of_a_history(fronts: Fronts) -> None:
    with fronts() as running:
        with urllib.request.urlopen(f"http://{running.http}/v2/models/identity/rollout/history") as answer:
            found = json.load(answer)
        with grpc.insecure_channel(running.grpc) as channel:
            call = channel.unary_unary(
                "/nereid.RolloutService/RolloutHistory",
                messages.RolloutStatusRequest.SerializeToString,
                messages.RolloutStatusResponse.FromString,
            )
            same = MessageToDict(call(messages.RolloutStatusRequest(model_name="identity")).status)
    assert found == same
    assert [event["what"] for event in found["events"]] == ["loaded", "failed", "rolled back"]
    assert found["events"][1]["evidence"]["candidate_failed"] == 10
    assert found["version"] == 1 and found["rejected"][0]["version"] == 3


def test_a_rollback_arrives_whole(fronts: Fronts, protocol: str) -> None:
    change = {"action": "rollback", "version": 0, "why": "ticket 7", "user": "ann"}
    with fronts() as running:
        ask(running, protocol, change)
        expected = RolloutChange("rollback", version=0, why="ticket 7", user="ann")
        assert running.service.changes == [(expected, "anonymous")]


def test_a_change_arrives_whole(fronts: Fronts, protocol: str) -> None:
    change = {"action": "start", "candidate": 3, "weight": 0, "spec": {"steps": [1, 20], "sticky": "id"}}
    with fronts() as running:
        status, found = ask(running, protocol, change)
        assert running.service.changes == [
            (RolloutChange("start", 3, 0, {"steps": [1, 20], "sticky": "id"}), "anonymous")
        ]
    assert status in ("200", "OK") and found["model"] == "identity"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"action": "go"}, "Invalid enum value 'go' - at `$.action`; actions are start, set, pause, resume"),
        ({}, "; actions are start, set, pause, resume, promote, abort"),
    ],
)
def test_a_wrong_change_is_refused_with_what_is_wrong(
    fronts: Fronts, protocol: str, change: Any, text: str
) -> None:
    with fronts() as running:
        status, error = ask(running, protocol, change)
        assert running.service.changes == []
    assert status == INVALID[protocol]
    assert error.startswith("invalid rollout request: ") and text in error


def test_an_unknown_field_is_refused(fronts: Fronts) -> None:
    with fronts() as running:
        assert ask(running, "http", {"action": "set", "wait": 5}) == (
            "400",
            "invalid rollout request: Object contains unknown field `wait`;"
            " actions are start, set, pause, resume, promote, abort, rollback, forget",
        )


def test_what_the_manager_refuses_is_the_answer(fronts: Fronts, protocol: str) -> None:
    with fronts() as running:
        running.service.failure = not_found("model 'identity' has had no rollout")
        found = (
            {"http": "404", "grpc": "NOT_FOUND"}[protocol],
            "model 'identity' has had no rollout",
        )
        assert ask(running, protocol) == ask(running, protocol, {"action": "abort"}) == found


def test_rollouts_need_the_scope_manage_and_changes_are_recorded(
    fronts: Fronts, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    denied = {"http": "403", "grpc": "PERMISSION_DENIED"}[protocol]
    with guarded(fronts) as (running, _):
        assert ask(running, protocol)[0] == {"http": "401", "grpc": "UNAUTHENTICATED"}[protocol]
        for change in (None, {"action": "abort"}):
            for secret in ("infer", "other"):
                assert ask(running, protocol, change, headers=of(secret))[0] == denied
        assert ask(running, protocol, headers=of("manage"))[0] in ("200", "OK")
        assert ask(running, protocol, {"action": "abort"}, headers=of("manage"))[0] in ("200", "OK")
        assert running.service.changes == [(RolloutChange("abort"), "manage")]
    found = [(line["action"], line["who"], line["outcome"]) for line in lines(caplog)]
    assert found == [
        ("change-rollout", "infer", "denied"),
        ("change-rollout", "other-models", "denied"),
        ("change-rollout", "manage", "ok"),
    ]


def test_a_restricted_server_refuses_rollouts(fronts: Fronts) -> None:
    with fronts(
        http_restricted_api=["model-repository:key=value"],
        grpc_restricted_protocol=["model-repository:key=value"],
    ) as running:
        for change in (None, {"action": "abort"}):
            assert ask(running, "http", change)[0] == "403"
            assert ask(running, "grpc", change)[0] == "UNAVAILABLE"
        assert ask(running, "http", headers={"key": "value"})[0] == "200"
        assert ask(running, "grpc", headers={"triton-grpc-protocol-key": "value"})[0] == "OK"


def test_reflection_describes_the_service(fronts: Fronts) -> None:
    request = reflection_pb2.ServerReflectionRequest
    with fronts(grpc_reflection=True) as running, grpc.insecure_channel(running.grpc) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        services, file = stub.ServerReflectionInfo(
            iter([request(list_services=""), request(file_containing_symbol="nereid.RolloutService")])
        )
    assert "nereid.RolloutService" in [one.name for one in services.list_services_response.service]
    assert messages.FILE.SerializeToString() in file.file_descriptor_response.file_descriptor_proto
