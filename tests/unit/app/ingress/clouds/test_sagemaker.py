"""The front for SageMaker, asked as the platform asks; statuses and texts are tritonserver's."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.access.audit import Audit
from app.access.grants import Grants
from app.access.tokens import make_token
from app.core.errors import ErrorCode, InferError, not_found
from app.ingress.access.guard import Guard
from app.ingress.clouds import models
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.clouds.http_calls import JSON_INFER, Answer, ask, binary_infer, binary_output
from tests.unit.app.ingress.running_fronts import Fronts

Ask = Callable[..., Answer]
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the models that the platform names."""
    monkeypatch.setattr(models, "_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "identity")
    return lambda name, value: monkeypatch.setenv(f"SAGEMAKER_TRITON_{name}", value)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def sagemaker(fronts: Fronts, environment: Any, service: FakeService) -> Iterator[Ask]:
    port = free_port()
    with fronts(service=service, allow_sagemaker=True, sagemaker_port=port):
        yield lambda *arguments, **options: ask(port, *arguments, **options)


def test_ping_asks_whether_the_server_is_ready(sagemaker: Ask, service: FakeService) -> None:
    assert sagemaker("GET", "/ping").status == 200
    service.is_ready = False
    assert sagemaker("GET", "/ping").status == 400
    assert sagemaker("POST", "/ping").status == 405
    service.is_ready = True
    for content_type in (f"{BINARY}abc", f"{BINARY}{'9' * 5000}", f"x{BINARY}1"):
        assert sagemaker("GET", "/ping", b"", {"Content-Type": content_type}).status == 200


def test_ping_of_many_models_asks_whether_the_server_is_live(
    fronts: Fronts, environment: Any, service: FakeService
) -> None:
    environment("PING_MODE", "live")
    service.is_ready, port = False, free_port()
    with fronts(service=service, allow_sagemaker=True, sagemaker_port=port):
        assert ask(port, "GET", "/ping").status == 200


def test_invocations_are_inferences_of_the_default_model(sagemaker: Ask) -> None:
    answer = sagemaker("POST", "/invocations", JSON_INFER, {"Content-Type": "application/json"})
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert answer.document["outputs"][0]["data"] == [1.0, 2.0]
    refused = sagemaker("POST", "/invocations", b"{")
    assert refused.status == 500 and "failed to parse the request JSON buffer" in refused.document["error"]
    assert sagemaker("GET", "/invocations").status == 405


def test_the_content_type_has_the_length_of_the_json_part_both_ways(sagemaker: Ask) -> None:
    body, headers = binary_infer("sagemaker", np.array([[1, 2, 3]], np.float32))
    answer = sagemaker("POST", "/invocations", body, headers)
    assert answer.status == 200 and binary_output(answer, "sagemaker") == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        (f"{BINARY}x", "Unable to parse inference header size, got: x"),
        (
            f"{BINARY}9999999999",
            "Unable to parse inference header size, value is out of range, got: 9999999999",
        ),
        (f"a{BINARY}1", f"expect MIME type for binary data starts with '{BINARY}', got: a{BINARY}1"),
        (
            f"{BINARY}{len(JSON_INFER) + 1}",
            f"inference header size should be in range (0, {len(JSON_INFER)}), got: {len(JSON_INFER) + 1}",
        ),
    ],
)
def test_a_content_type_without_a_length_is_refused(sagemaker: Ask, content_type: str, text: str) -> None:
    answer = sagemaker("POST", "/invocations", JSON_INFER, {"Content-Type": content_type})
    assert (answer.status, answer.document) == (400, {"error": text})


def test_tritons_own_header_means_nothing_here(sagemaker: Ask) -> None:
    answer = sagemaker("POST", "/invocations", JSON_INFER, {"Inference-Header-Content-Length": "3"})
    assert answer.status == 200


def test_invocations_may_generate(fronts: Fronts, environment: Any) -> None:
    environment("INFERENCE_TYPE", "generate_stream")
    port = free_port()
    with fronts(allow_sagemaker=True, sagemaker_port=port):
        answer = ask(port, "POST", "/invocations", json.dumps({"INPUT0": [1.0]}).encode())
    assert answer.content_type.startswith("text/event-stream") and answer.body.startswith(b"data: {")


@pytest.mark.parametrize("path", ["/", "/v2/models/identity/infer", "/models/a/b", "/models//invoke"])
def test_other_paths_are_refused(sagemaker: Ask, path: str) -> None:
    assert sagemaker("POST", path, JSON_INFER)[::2] == (400, b"")


def load(name: str, url: Any) -> bytes:
    return json.dumps({"model_name": name, "url": str(url)}).encode()


def test_models_are_loaded_listed_asked_and_unloaded(
    sagemaker: Ask, service: FakeService, root: Path
) -> None:
    url = str(root / "identity" / "model")
    assert sagemaker("GET", "/models").document == {"models": []}
    assert sagemaker("POST", "/models", load("identity", url)).status == 200
    assert service.registered == {"identity": url}
    shown = {"modelName": "identity", "modelUrl": url}
    assert sagemaker("GET", "/models").document == {"models": [shown]}
    assert sagemaker("GET", "/models/identity").document == shown
    body, headers = binary_infer("sagemaker", np.array([[4]], np.float32))
    answer = sagemaker("POST", "/models/identity/invoke", body, headers)
    assert binary_output(answer, "sagemaker") == [4.0]
    assert sagemaker("DELETE", "/models/identity").status == 200
    assert service.unloaded == [("identity", True)]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/models/none"), ("DELETE", "/models/none"), ("POST", "/models/none/invoke")]
)
def test_a_model_that_is_not_loaded_is_not_found(sagemaker: Ask, method: str, path: str) -> None:
    assert sagemaker(method, path, JSON_INFER)[::2] == (404, b"")


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (InferError(ErrorCode.INTERNAL, "CUDA out of memory. Tried to allocate 2 GiB"), 507),
        (InferError(ErrorCode.INTERNAL, "[Errno 28] No space left on device"), 507),
        (InferError(ErrorCode.ALREADY_EXISTS, "model repository '/x' has already been registered"), 409),
        (InferError(ErrorCode.INTERNAL, "there is no room for it"), 400),
    ],
)
def test_failures_have_the_statuses_of_sagemakers_contract(
    sagemaker: Ask, service: FakeService, root: Path, failure: InferError, status: int
) -> None:
    service.failure = failure
    loaded = sagemaker("POST", "/models", load("identity", root / "identity" / "model"))
    assert (loaded.status, loaded.document) == (status, {"error": failure.message})
    if status != 409:
        assert sagemaker("POST", "/models/identity/invoke", JSON_INFER).status == status


@pytest.mark.parametrize(
    "url", ["/etc/model", "{root}/../../etc/model", "{root}/a", "{root}/a/model/b/c", "{root}/link/model", ""]
)
def test_only_directories_of_the_platform_are_loaded(
    sagemaker: Ask, service: FakeService, root: Path, url: str
) -> None:
    os.symlink("/etc", root / "link")
    answer = sagemaker("POST", "/models", load("a", url.format(root=root)))
    assert answer.status == 400 and "expected a path of the form" in answer.document["error"]
    assert service.registered == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model_name":1,"url":"x"}', b'{"model_name":"a"}'])
def test_other_bodies_are_refused(sagemaker: Ask, body: bytes) -> None:
    assert sagemaker("POST", "/models", body).status == 400


def test_restrictions_and_web_origins_are_those_of_http(
    fronts: Fronts, environment: Any, service: FakeService
) -> None:
    port, key = free_port(), {"k": "v"}
    restricted = {"http_restricted_api": "inference,model-repository:k=v"}
    with fronts(service=service, allow_sagemaker=True, sagemaker_port=port, **restricted):
        for method, path in (
            ("POST", "/invocations"),
            ("GET", "/models"),
            ("POST", "/models/identity/invoke"),
        ):
            assert ask(port, method, path, JSON_INFER).status == 403
            assert ask(port, method, path, JSON_INFER, key).status == 200
        foreign = {**key, "Origin": "https://example.com"}
        assert ask(port, "DELETE", "/models/identity", headers=foreign).status == 403
        assert ask(port, "GET", "/ping").status == 200
    assert service.unloaded == []


def test_tokens_are_asked_for(
    fronts: Fronts, environment: Any, service: FakeService, tmp_path: Path, root: Path
) -> None:
    grants, log = Grants(), tmp_path / "audit.jsonl"
    grants.replace([make_token("secret", name="reader", scope=("infer",))])
    port, bearer = free_port(), {"Authorization": "Bearer secret"}
    guard = Guard(grants, Audit(str(log)))
    body = load("identity", root / "identity" / "model")
    with fronts(service=service, guard=guard, allow_sagemaker=True, sagemaker_port=port):
        assert ask(port, "POST", "/invocations", JSON_INFER).status == 401
        assert ask(port, "POST", "/invocations", JSON_INFER, bearer).status == 200
        assert ask(port, "POST", "/models", body, bearer).status == 403
        assert ask(port, "GET", "/ping").status == 200
    assert service.registered == {}
    assert [json.loads(line)["outcome"] for line in log.read_text().splitlines()] == ["denied"]


def test_tokens_hold_for_the_models_that_bodies_name(
    fronts: Fronts, environment: Any, service: FakeService, tmp_path: Path, root: Path
) -> None:
    grants, log = Grants(), tmp_path / "audit.jsonl"
    grants.replace([make_token("secret", name="team", scope=("manage",), models=("team-*",))])
    service.registered = {"other": "/x/model"}
    port, bearer = free_port(), {"Authorization": "Bearer secret"}
    url = str(root / "hash" / "model")
    with fronts(
        service=service, guard=Guard(grants, Audit(str(log))), allow_sagemaker=True, sagemaker_port=port
    ):

        def asked(method: str, path: str, body: bytes = b"") -> Answer:
            return ask(port, method, path, body, bearer)

        refused = asked("POST", "/models", load("victim", url))
        text = "the token 'team' is not for the model 'victim'"
        assert (refused.status, refused.document) == (403, {"error": text})
        assert asked("POST", "/models", load("team-a", url)).status == 200
        listed = {"models": [{"modelName": "team-a", "modelUrl": url}]}
        assert asked("GET", "/models").document == listed
        assert asked("GET", "/models/other").status == asked("DELETE", "/models/other").status == 403
        assert asked("POST", "/models", load("team-b", "/etc")).status == 400
        service.failure = InferError(ErrorCode.INTERNAL, "it does not load")
        assert asked("POST", "/models", load("team-c", url)).status == 400
        service.failure = InferError(ErrorCode.INVALID_ARG, "no name")
        assert asked("POST", "/models", b'{"model_name":"team-\xff","url":"%b"}' % url.encode()).status == 400
        assert asked("POST", "/models", b"{").status == 400
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line.get("subject", ""), line["outcome"], line.get("reason", "")[:18]) for line in lines] == [
        ("victim", "denied", "the token 'team' i"),
        ("team-a", "ok", ""),
        ("other", "denied", "the token 'team' i"),
        ("team-b", "failed", 'Invalid "url" \'/et'),
        ("team-c", "failed", "it does not load"),
        ("team-\\udcff", "failed", "no name"),
        ("", "failed", "failed to parse th"),
    ]
    assert service.unloaded == []


def test_an_unknown_default_model_is_named_in_the_error(fronts: Fronts) -> None:
    port = free_port()
    with fronts(allow_sagemaker=True, sagemaker_port=port):
        answer = ask(port, "POST", "/invocations", JSON_INFER)
    expected = not_found(
        "Request for unknown model: 'unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME' is not found"
    )
    assert (answer.status, answer.document["error"]) == (404, expected.message)
