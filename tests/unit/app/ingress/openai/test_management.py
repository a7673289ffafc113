"""Lists of models, loads, health, refusals: in OpenAI's form, on both ports."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, NamedTuple

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.access.grants import Grants
from app.access.tokens import Token, digest
from app.core.errors import not_found
from app.ingress.access.guard import Guard
from app.ingress.openai.management import Turns
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts
from tests.waiting import until

TEXT = """
name: "identity" backend: "python"
input [{ name: "prompt" data_type: TYPE_STRING dims: [ 1 ] }]
output [{ name: "answer" data_type: TYPE_STRING dims: [ 1 ] }]
parameters { key: "openai" value { string_value: '{"aliases": ["gpt"], "max_model_len": 64}' } }
"""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    document: Any


Ask = Callable[..., Answer]


def ask(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    """Send one request on a connection of its own."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, {n.replace("_", "-"): v for n, v in headers.items()})
        response = connection.getresponse()
        raw = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, json.loads(raw) if raw[:1] in (b"{", b"[") else raw)
    finally:
        connection.close()


def text_service() -> FakeService:
    service = FakeService()
    service.config = text_format.Parse(TEXT, mc.ModelConfig())
    return service


@pytest.fixture(params=["own port", "port of HTTP"])
def openai(request: pytest.FixtureRequest, fronts: Fronts) -> Iterator[Callable[..., Any]]:
    """Opens the front by further settings, on either port; returns what asks it."""
    opened = []

    def start(service: FakeService | None = None, **settings: Any) -> Ask:
        port = free_port()
        place = {"openai_port": port} if request.param == "own port" else {"allow_openai": True}
        running = fronts(service=service or text_service(), **place, **settings)
        opened.append(running)
        found = running.__enter__()
        at = port if request.param == "own port" else found.http_port
        return lambda *arguments, **options: ask(at, *arguments, **options)

    yield start
    for running in opened:
        running.__exit__(None, None, None)


MODEL = {
    "id": "identity",
    "object": "model",
    "created": 0,
    "owned_by": "Triton Inference Server",
    "tasks": ["completions"],
    "max_model_len": 64,
}
ALIAS = MODEL | {"id": "gpt", "parent": "identity"}


def test_models_are_listed_with_their_aliases(openai: Callable[..., Ask]) -> None:
    asked = openai()
    found = asked("GET", "/v1/models")
    assert (found.status, found.document) == (200, {"object": "list", "data": [MODEL, ALIAS]})
    assert found.headers["content-type"] == "application/json"
    assert len(found.headers["x-request-id"]) == 32
    assert asked("GET", "/v1/models/gpt", x_request_id="mine").headers["x-request-id"] == "mine"
    assert asked("GET", "/v1/models/identity").document == MODEL


def test_an_unknown_model_is_answered_in_the_form_of_openai(openai: Callable[..., Ask]) -> None:
    found = openai()("GET", "/v1/models/nobody")
    text = "Unknown model: nobody"
    error = {"message": text, "type": "invalid_request_error", "param": "model", "code": "model_not_found"}
    assert (found.status, found.document) == (404, {"error": error, "detail": text})


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "unknown_url"),
        ("DELETE", "/v1/models/identity", 405, "method_not_supported"),
    ],
)
def test_other_paths_and_methods_are_refused(
    openai: Callable[..., Ask], method: str, path: str, status: int, code: str
) -> None:
    found = openai()(method, path)
    assert (found.status, found.document["error"]["code"]) == (status, code)


def test_loads_have_the_answers_of_tritons_front(openai: Callable[..., Ask]) -> None:
    service = text_service()
    asked = openai(service, model_control_mode="explicit")
    assert (
        asked("POST", "/v1/models/identity/load").document["detail"] == "Model 'identity' is already loaded"
    )
    unloaded = asked("POST", "/v1/models/identity/unload")
    assert (unloaded.status, unloaded.document) == (200, {"status": "success", "model": "identity"})
    assert service.unloaded == [("identity", False)]
    assert asked("POST", "/v1/models/nobody/unload").document["detail"] == "Unknown model: nobody"
    failed = asked("POST", "/v1/models/nobody/load")
    assert service.loaded == [("nobody", None, {})] and failed.status == 404


LOADS = 5


class Loading(FakeService):
    """Has the model only when it was loaded, which takes as long as other requests take to be read."""

    waiting = 0

    def _check(self, name: str, version: str) -> None:
        if not self.loaded:
            raise not_found(f"Request for unknown model: '{name}' is not found")
        super()._check(name, version)

    async def load_model(
        self, name: str, config: str | None, files: Mapping[str, bytes], who: str = ""
    ) -> None:
        await until(lambda: self.waiting == LOADS)
        await super().load_model(name, config, files)


def test_of_loads_at_once_the_first_one_counts(
    openai: Callable[..., Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Loading()
    turn_of = Turns.of

    def counted(turns: Turns, name: str) -> asyncio.Lock:
        service.waiting += 1
        return turn_of(turns, name)

    monkeypatch.setattr(Turns, "of", counted)
    asked = openai(service, model_control_mode="explicit")
    with ThreadPoolExecutor(LOADS) as pool:
        found = list(pool.map(lambda _: asked("POST", "/v1/models/identity/load"), range(LOADS)))
    assert sorted(each.status for each in found) == [200] + [400] * (LOADS - 1)
    assert len(service.loaded) == 1


def test_a_body_that_is_too_large_loads_nothing(openai: Callable[..., Ask]) -> None:
    service = text_service()
    asked = openai(service, model_control_mode="explicit", http_max_input_size=10)
    found = asked("POST", "/v1/models/nobody/load", b"x" * 11)
    assert (found.status, found.document["error"]["code"]) == (413, "content_too_large")
    assert service.loaded == []


def test_loads_need_the_explicit_mode(openai: Callable[..., Ask]) -> None:
    found = openai()("POST", "/v1/models/identity/load")
    assert found.status == 400
    assert found.document["detail"] == "Model load/unload requires --model-control-mode=explicit"


def test_a_restricted_group_needs_its_header(openai: Callable[..., Ask]) -> None:
    asked = openai(openai_restricted_api=["model-repository:admin-key=secret"])
    found = asked("GET", "/v1/models")
    assert found.status == 401
    assert found.document["error"] == {
        "message": "This API is restricted, expecting header 'admin-key' with valid value",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_auth",
    }
    assert asked("GET", "/v1/models", admin_key="secret").status == 200


def test_pages_of_other_sites_ask_where_they_are_allowed(openai: Callable[..., Ask]) -> None:
    asked = openai(allow_origin=["https://a.example"])
    assert asked("GET", "/v1/models", Origin="https://b.example").status == 403
    found = asked("GET", "/v1/models", Origin="https://a.example")
    assert found.headers["access-control-allow-origin"] == "https://a.example"
    preflight = asked("OPTIONS", "/v1/chat/completions", Origin="https://a.example")
    assert preflight.status == 204
    assert "Authorization" in preflight.headers["access-control-allow-headers"]
    assert asked("OPTIONS", "/v1/chat/completions", Origin="https://b.example").status == 403


def test_a_list_needs_no_more_than_metadata(openai: Callable[..., Ask]) -> None:
    grants = Grants([Token(name="reader", sha256=digest("secret"), scope=("infer",), models=("identity",))])
    asked = openai(guard=Guard(grants, None))
    refused = asked("GET", "/v1/models")
    assert (refused.status, refused.document["error"]["code"]) == (401, "invalid_api_key")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert asked("GET", "/v1/models", Authorization="Bearer secret").status == 200
    denied = asked("POST", "/v1/models/identity/load", Authorization="Bearer secret")
    assert (denied.status, denied.document["error"]["type"]) == (403, "permission_error")


def test_a_port_of_its_own_tells_whether_the_server_is_ready(fronts: Fronts) -> None:
    service, port = text_service(), free_port()
    with fronts(service=service, openai_port=port):
        assert ask(port, "GET", "/health/ready").status == 200
        assert ask(port, "GET", "/metrics").status == 200
        service.is_ready = False
        assert ask(port, "GET", "/health/ready").status == 400
        assert ask(port, "GET", "/v2").status == 404
