"""The front for Vertex AI, asked as the platform asks; statuses and texts are tritonserver's."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from app.settings.flag.errors import SettingsError
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.clouds.http_calls import JSON_INFER, Answer, ask, binary_infer, binary_output
from tests.unit.app.ingress.running_fronts import Fronts, Running

PREDICT, HEALTH = "/v1/endpoints/1/deployedModels/2:predict", "/v1/endpoints/1/deployedModels/2"
Ask = Callable[..., Answer]


class OneModel(FakeService):
    """Serves one model."""

    async def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        self.indexed.append(ready)
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(name="identity")])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIP_PREDICT_ROUTE", PREDICT)
    monkeypatch.setenv("AIP_HEALTH_ROUTE", HEALTH)


@pytest.fixture
def vertex_ai(fronts: Fronts) -> Iterator[Ask]:
    port = free_port()
    given: Any = {"vertex_ai_port": port, "vertex_ai_default_model": "identity"}
    with fronts(service=OneModel(), allow_vertex_ai=True, **given):
        yield lambda *arguments, **options: ask(port, *arguments, **options)


def test_health_asks_whether_the_server_is_ready(vertex_ai: Ask) -> None:
    assert vertex_ai("GET", HEALTH).status == 200
    assert vertex_ai("GET", "/v2/health/ready")[::2] == (400, b"")


def test_health_is_that_of_a_server_without_its_model_once_the_start_is_over(fronts: Fronts) -> None:
    port, service = free_port(), FakeService()
    with fronts(service=service, allow_vertex_ai=True, vertex_ai_port=port, vertex_ai_default_model="gone"):
        answer = ask(port, "GET", HEALTH)
        service.is_ready = False
        assert ask(port, "GET", HEALTH)[::2] == (400, b"")
    assert (answer.status, answer.document["error"]) == (400, "Expect the default model 'gone' is loaded")


def test_a_model_that_is_unloaded_later_leaves_the_server_ready(fronts: Fronts) -> None:
    port, service = free_port(), FakeService()
    with fronts(service=service, allow_vertex_ai=True, vertex_ai_port=port, vertex_ai_default_model="b"):
        assert ask(port, "GET", HEALTH).status == 200
        service.indexed.clear()
        assert ask(port, "GET", HEALTH).status == 200
        assert not service.indexed


def test_predictions_are_inferences_of_the_default_model(vertex_ai: Ask) -> None:
    answer = vertex_ai("POST", PREDICT, JSON_INFER)
    assert answer.status == 200 and answer.document["outputs"][0]["data"] == [1.0, 2.0]
    body, headers = binary_infer("vertex-ai", np.array([[7]], np.float32))
    assert binary_output(vertex_ai("POST", PREDICT, body, headers)) == [7.0]
    assert vertex_ai("GET", PREDICT).status == 405


def redirect(vertex_ai: Ask, target: str, method: str = "POST", body: bytes = b"") -> Answer:
    return vertex_ai(method, PREDICT, body, {"X-Vertex-Ai-Triton-Redirect": target})


@pytest.mark.parametrize(
    "target",
    [
        "v2", "v2/health/live", "v2/models/identity", "v2/models/identity/versions/1/config",
        "v2/models/identity/stats", "v2/models/stats", "v2/repository/index", "v2/systemsharedmemory/status",
        "v2/cudasharedmemory/status", "v2/models/identity/ready",
    ],
)  # fmt: skip
def test_a_header_reaches_what_only_reads(vertex_ai: Ask, target: str) -> None:
    assert redirect(vertex_ai, target).status == 200
    assert redirect(vertex_ai, target, "GET").status == 405


def test_a_header_reaches_inference_and_metrics(vertex_ai: Ask) -> None:
    assert redirect(vertex_ai, "v2/models/identity/versions/1/infer", body=JSON_INFER).status == 200
    assert redirect(vertex_ai, "metrics").content_type.startswith("text/plain")


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("v2/repository/models/identity/load", 403),
        ("v2/repository/x/models/identity/unload", 403),
        ("v2/systemsharedmemory/region/a/register", 403),
        ("v2/cudasharedmemory/unregister", 403),
        ("v2/models/identity/generate", 400),
        ("v2/logging", 400),
        ("v2/trace/setting", 400),
        ("/v2", 400),
        ("v2/models/identity/infer?x", 400),
        ("", 400),
    ],
)
def test_a_header_reaches_nothing_else(vertex_ai: Ask, target: str, status: int) -> None:
    assert redirect(vertex_ai, target, body=b"{}")[::2] == (status, b"")


def test_the_only_model_is_the_default_one(fronts: Fronts) -> None:
    port, service = free_port(), OneModel()
    with fronts(service=service, allow_vertex_ai=True, vertex_ai_port=port):
        assert ask(port, "POST", PREDICT, JSON_INFER).document["outputs"][0]["data"] == [1.0, 2.0]
    assert service.indexed == [True]


def test_several_models_need_a_default_one(fronts: Fronts) -> None:
    port = free_port()
    with fronts(allow_vertex_ai=True, vertex_ai_port=port):
        answer = ask(port, "POST", PREDICT, JSON_INFER)
    assert (answer.status, answer.document["error"]) == (
        400,
        "Expect the model repository contains only a single model if default model is not specified",
    )


def test_restrictions_hold_through_the_redirect(fronts: Fronts) -> None:
    port = free_port()
    args: Any = {"http_restricted_api": "inference,metadata:k=v", "vertex_ai_default_model": "identity"}
    with fronts(allow_vertex_ai=True, vertex_ai_port=port, **args):
        for target in ({}, {"X-Vertex-Ai-Triton-Redirect": "v2/models/identity"}):
            assert ask(port, "POST", PREDICT, JSON_INFER, target).status == 403
            assert ask(port, "POST", PREDICT, JSON_INFER, {**target, "k": "v"}).status == 200


@pytest.mark.parametrize("missing", ["AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"])
def test_routes_must_be_set(fronts: Fronts, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    with (
        pytest.raises(SettingsError, match=f"{missing} is not defined for Vertex AI endpoint"),
        fronts(allow_vertex_ai=True),
    ):
        pass


def test_a_container_of_the_platform_opens_only_this_front(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("AIP_MODE", "PREDICTION")
    monkeypatch.setenv("AIP_HTTP_PORT", str(port))
    opened: Running
    with fronts(vertex_ai_default_model="identity") as opened:
        assert ask(port, "POST", PREDICT, JSON_INFER).status == 200
        with pytest.raises(OSError):
            ask(opened.http_port, "GET", "/v2")
