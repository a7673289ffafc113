"""Every route and RPC has a restriction category, and nothing else runs on a restricted server."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.core.observability.live_settings import LiveSettings
from app.ingress.grpc.front import GrpcFront
from app.ingress.http1.exchange import FixedRoute
from app.ingress.rest.front import HttpFront
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.tracing.observer import Observer
from app.protocol.http.http1 import RequestHead
from app.protocol.restrictions import CATEGORIES, Category, Restriction
from app.settings.fronts import GrpcSettings, HttpSettings
from tests.unit.app.http_fakes import FakeService

SECRET = Restriction("key", "value")


@pytest.fixture(scope="module")
def rest_api() -> RestApi:
    return build_rest_api(FakeService(), observer=Observer(LiveSettings()))


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/", "model-repository"),
        ("/v2", "metadata"),
        ("/v2/models", "model-repository"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/1/ready", "health"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/ready", "health"),
        ("/v2/models/m/versions/1/stats", "statistics"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/models/m/tape/setting", "trace"),
        ("/v2/nereid/tape/setting", "trace"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/r/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/repository/r/models/m/unload", "model-repository"),
        ("/v2/models/m/rollout", "model-repository"),
        ("/v2/repository/models/m/rollout", "model-repository"),
        ("/v2/models/m/versions/2/feedback", "feedback"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/systemsharedmemory/region/r/register", "shared-memory"),
        ("/v2/cudasharedmemory/unregister", "shared-memory"),
        ("/v2/logging", "logging"),
        ("/v2/", None),
        ("/v2/models/m/infer/", None),
        ("/v2/models/m/versions/x/infer", None),
        ("/metrics", None),
    ],
)
def test_route_category_by_path(rest_api: RestApi, path: str, category: str | None) -> None:
    for method in ("GET", "POST", "PUT"):
        ask = rest_api.ask(method, path)
        assert (ask and ask.need) == category


def test_every_rest_route_has_a_category(rest_api: RestApi) -> None:
    assert len(rest_api.routes) > 30
    for route in rest_api.routes:
        assert isinstance(route, RestRoute) and route.category in CATEGORIES, route


def test_rest_route_without_a_category_is_refused(rest_api: RestApi) -> None:
    route: Any = RestRoute
    with pytest.raises(TypeError):
        route(method="GET", path="/v2/new", endpoint=print)


def head_of(path: str) -> RequestHead:
    return RequestHead("GET", path, b"", "1.1", (), True, 0, False)


def routes_of(rest_api: RestApi) -> Iterator[str]:
    for route in rest_api.routes:
        assert isinstance(route, RestRoute)
        yield re.sub(r"{\w+:\w+}", "1", route.path)
    yield from ("/v2/models/m/infer", "/v2/models/m/versions/12/generate", "/v2/models/m/generate_stream")


async def test_a_fully_restricted_server_refuses_every_route(rest_api: RestApi) -> None:
    front = HttpFront(FakeService(), HttpSettings(restrictions=dict.fromkeys(get_args(Category), SECRET)))
    for path in routes_of(rest_api):
        route = front.route(head_of(path))
        assert isinstance(route, FixedRoute) and route.status == 403, path


@pytest.mark.parametrize("path", ["//", "/v2/new", "/v2/models/m/infer/", "/v3"])
async def test_a_restricted_server_runs_no_handler_for_an_unknown_path(path: str) -> None:
    route = HttpFront(FakeService(), HttpSettings(restrictions={"trace": SECRET})).route(head_of(path))
    assert isinstance(route, FixedRoute) and route.status == 404


async def test_every_rpc_has_a_category() -> None:
    described = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    methods = GrpcFront(FakeService(), GrpcSettings(reflection=True)).methods()
    served = {path.removeprefix("/inference.GRPCInferenceService/") for path in methods}
    assert set(described) <= served
    for path, method in methods.items():
        assert method.category in CATEGORIES, path
