"""Fronts behind a gateway that leaves its path before those of requests."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient

from app.access.grants import Grants
from app.access.tokens import make_token
from app.ingress.access.guard import Guard
from app.ingress.clouds import models
from app.settings.fronts import Http1Settings, HttpSettings
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.clouds.http_calls import JSON_INFER, ask
from tests.unit.app.ingress.http_peer import INFER, binary_infer
from tests.unit.app.ingress.running_fronts import Fronts, infer
from tests.unit.app.ingress.two_planes import Planes

PREFIX = "/api/predict/service"
BROWSER = {"Accept": "text/html"}


@pytest.fixture
def behind(fronts: Fronts) -> Any:
    def opened(**settings: Any) -> Any:
        return fronts(**{"service": FakeService(), "http_path_prefix": [PREFIX, "/other"], **settings})

    return opened


def test_clients_whose_address_has_the_path_find_everything(behind: Any) -> None:
    with behind() as running:
        for path in (PREFIX, "/other", ""):
            with httpclient.InferenceServerClient(f"{running.http}{path}") as client:
                assert (
                    client.is_server_ready() and client.get_model_metadata("identity")["name"] == "identity"
                )
                for _ in range(4):  # the native plane knows the later ones by their look
                    assert infer(client, httpclient) == [[0.0] * 4]


@pytest.mark.parametrize("path", ["/api/predict/service2/v2", "/api/predict/v2", "/x/api/predict/service/v2"])
def test_other_paths_are_not_found(behind: Any, path: str) -> None:
    with behind() as running:
        assert ask(running.http_port, "GET", path).status == 404
        assert ask(running.http_port, "GET", f"{PREFIX}{path}").status == 404
        assert ask(running.http_port, "GET", f"{PREFIX}{PREFIX}/v2").status == 404, "it is taken away once"


def test_restrictions_and_tokens_are_those_of_the_path_behind(behind: Any) -> None:
    grants = Grants([make_token("secret", name="a", scope=("infer",), models=("other",))])
    with behind(guard=Guard(grants, None)) as running:
        path, bearer = f"{PREFIX}{INFER}", {"Authorization": "Bearer secret"}
        assert ask(running.http_port, "POST", path, JSON_INFER).status == 401
        assert ask(running.http_port, "POST", path, JSON_INFER, bearer).status == 403
        assert ask(running.http_port, "POST", f"{PREFIX}/v2/repository/index", b"", bearer).status == 403
        assert ask(running.http_port, "GET", f"{PREFIX}/v2/health/ready").status == 200
    with behind(http_restricted_api="inference:k=v") as running:
        assert ask(running.http_port, "POST", path, JSON_INFER).status == 403


def test_pages_link_to_what_the_gateway_finds(behind: Any) -> None:
    with behind() as running:
        for root in (PREFIX, ""):
            home = ask(running.http_port, "GET", f"{root}/", headers=BROWSER).body.decode()
            assert f'href="{root}/v2/models"' in home and f'href="{root}/docs"' in home
            page = ask(running.http_port, "GET", f"{root}/docs").body.decode()
            assert f"'{root}/openapi.json'" in page and f'"{root}/docs/swagger-ui.css"' in page
            servers = ask(running.http_port, "GET", f"{root}/openapi.json").document.get("servers")
            assert servers == ([{"url": root}] if root else None)
        page = ask(running.http_port, "GET", PREFIX, headers=BROWSER).body.decode()
        assert f'href="{PREFIX}/v2/models"' in page


def test_metrics_and_platforms_are_behind_it_too(
    behind: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "_ROOT", str(tmp_path))
    monkeypatch.setenv("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "identity")
    metrics, sagemaker = free_port(), free_port()
    ports = {"allow_metrics": True, "metrics_port": metrics, "sagemaker_port": sagemaker}
    with behind(allow_sagemaker=True, allow_tfserving=True, **ports) as running:
        assert ask(metrics, "GET", f"{PREFIX}/metrics").content_type.startswith("text/plain")
        assert ask(sagemaker, "GET", f"{PREFIX}/ping").status == 200
        assert ask(sagemaker, "POST", f"{PREFIX}/invocations", JSON_INFER).status == 200
        assert ask(sagemaker, "GET", f"{PREFIX}/models").document == {"models": []}
        metadata = ask(running.http_port, "GET", f"{PREFIX}/v1/models/identity/metadata").document
        assert metadata["model_spec"]["name"] == "identity"


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_requests_are_recognised_behind_it(prefix: str) -> None:
    pytest.importorskip("app.native.extension")
    planes = Planes(HttpSettings(http1=Http1Settings(path_prefixes=(PREFIX,))))
    data = binary_infer(np.zeros((1, 16), np.float32), "User-Agent: " + "a" * 40, path=f"{prefix}{INFER}")
    for _ in range(4):
        written, recognised = planes.ask(data)
        assert written.startswith(b"HTTP/1.1 200 OK")
    assert recognised
    routed = planes.native.front._server.state.heads.get(data[: data.index(b"\r\n\r\n") + 4])
    assert routed is not None and (routed.head.path, routed.head.prefix) == (INFER, prefix)
