"""What a token for some models only may reach: a rule for each route and RPC; a new one without fails."""

import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any, Final

import grpc
import pytest

from app.access.grants import Grant, Grants
from app.access.tokens import make_token
from app.core.observability.live_settings import LiveSettings
from app.core.observability.recent_log import RecentLines
from app.ingress.access.caller import confined, context_of
from app.ingress.access.guard import METRICS, Guard
from app.ingress.grpc.front import GrpcFront
from app.ingress.rest.openapi.api import RestApi, RestRoute
from app.ingress.rest.openapi.insight import Insight
from app.ingress.rest.openapi.management import build_rest_api
from app.ingress.rest.reads import add_reads
from app.ingress.tracing.observer import Observer
from app.settings.fronts import GrpcSettings
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService
from tests.unit.app.ingress.access.guarded import MODULES, guarded, of
from tests.unit.app.ingress.running_fronts import WAIT_S, Fronts, Running, refusal

MODEL, SERVER, OWN, SCOPE, OPEN = "model", "server", "own", "scope", "open"
"""Rules: the model that a request names is the token's; the token is for all models; the answer, or what is
changed, is the token's alone; its scope suffices, since nothing of others is told or changed; nobody asks."""

M, V = "/v2/models/{m}", "/v2/models/{m}/versions/{v}"
ROUTES: Final[dict[str, str]] = {
    **dict.fromkeys(("GET /v2/health/live", "GET /v2/health/ready", "GET /-/healthz"), OPEN),
    **dict.fromkeys(
        (
            "GET /v2", "GET /openapi.json", "GET /docs", "GET /docs/swagger-ui-bundle.js",
            "GET /docs/swagger-ui.css", "GET /docs/favicon.png", "GET /v2/logging", "GET /v2/trace/setting",
            "GET /v2/nereid/tape/setting", "GET /v2/nereid/server",
        ),
        SCOPE,
    ),
    **dict.fromkeys(
        (
            "GET /", "GET /v2/models", "GET /v2/models/stats", "POST /v2/repository/index",
            "POST /v2/repository/{r}/index", "GET /v2/nereid/overview", "GET /v2/nereid/counters",
            "GET /v2/nereid/traces", "GET /v2/nereid/metrics", "GET /v2/nereid/tape", "GET /v2/nereid/cost",
            *(
                f"{method} /v2/{kind}sharedmemory{region}/{verb}"
                for kind in ("system", "cuda")
                for region in ("", "/region/{r}")
                for method, verb in (("GET", "status"), ("POST", "register"), ("POST", "unregister"))
            ),
        ),
        OWN,
    ),
    **dict.fromkeys(
        (
            *(f"GET {path}{end}" for path in (M, V) for end in ("", "/ready", "/config", "/stats", "/drift")),
            *(f"{method} {path}/config/text" for path in (M, V) for method in ("GET", "POST")),
            *(f"POST {path}/feedback" for path in (M, V)), f"GET {M}/feedback",
            *(f"POST /v2/repository{r}/models/{{m}}/load" for r in ("", "/{r}")),
            *(f"POST /v2/repository{r}/models/{{m}}/unload" for r in ("", "/{r}")),
            f"GET {M}/rollout", f"GET {M}/rollout/history", "POST /v2/repository/models/{m}/rollout",
            *(f"{method} {M}/{what}/setting" for method in ("GET", "POST") for what in ("trace", "tape")),
            f"GET {M}/tape", f"GET {M}/tape/{{r}}", f"POST {M}/tape/{{r}}/replay",
            "GET /v2/nereid/models/{m}/rollout", "GET /v2/nereid/models/{m}/drift",
        ),
        MODEL,
    ),
    **dict.fromkeys(
        (
            "POST /v2/logging", "POST /v2/trace/setting", "POST /v2/nereid/tape/setting",
            "GET /v2/nereid/logs",
        ),
        SERVER,
    ),
}  # fmt: skip


def field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message."""
    return bytes((number << 3 | 2, len(value))) + value


NAMED: Final = field(1, b"identity")
SPEC: Final = field(1, NAMED)
CHANGE: Final = field(1, field(1, b"log_verbose_level") + field(2, b"\x10\x00"))
TRACE: Final = field(1, field(1, b"trace_count") + field(2, field(1, b"5")))
V2, TFS = "/inference.GRPCInferenceService", "/tensorflow.serving"
RPCS: Final[dict[str, tuple[str, bytes | None]]] = {
    f"{V2}/ServerLive": (OPEN, b""),
    f"{V2}/ServerReady": (OPEN, b""),
    "/grpc.health.v1.Health/Check": (OPEN, b""),
    "/grpc.health.v1.Health/Watch": (OPEN, None),
    f"{V2}/ServerMetadata": (SCOPE, b""),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (SCOPE, None),
    f"{V2}/RepositoryIndex": (OWN, b""),
    **{
        f"{V2}/{kind}SharedMemory{verb}": (OWN, b"")
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
    f"{V2}/LogSettings": (SERVER, CHANGE),
    f"{V2}/TraceSetting": (SERVER, TRACE),
    f"{V2}/ModelInfer": (MODEL, NAMED),
    f"{V2}/ModelStreamInfer": (MODEL, None),  # test_inference.py
    **{f"{V2}/Model{what}": (MODEL, NAMED) for what in ("Ready", "Metadata", "Config", "Statistics")},
    **{f"{V2}/RepositoryModel{verb}": (MODEL, field(2, b"identity")) for verb in ("Load", "Unload")},
    **{f"/nereid.RolloutService/Rollout{what}": (MODEL, NAMED) for what in ("Status", "History", "Change")},
    "/nereid.FeedbackService/ModelFeedback": (MODEL, NAMED),
    "/nereid.FeedbackService/FeedbackFigures": (MODEL, NAMED),
    "/nereid.DriftService/DriftStatus": (MODEL, NAMED),
    **{f"{TFS}.PredictionService/{verb}": (MODEL, SPEC) for verb in ("Predict", "Classify", "Regress")},
    f"{TFS}.PredictionService/MultiInference": (MODEL, field(1, SPEC)),
    f"{TFS}.PredictionService/GetModelMetadata": (MODEL, SPEC + field(2, b"signature_def")),
    f"{TFS}.ModelService/GetModelStatus": (MODEL, SPEC),
}
"""Rule, and a request about the model of others; None where it is a stream."""

SOME: Final = make_token("some", name="some", scope=("infer", "manage", "metrics", "feedback"), models=("b",))
ALL: Final = make_token("all", name="all", scope=("infer", "manage", "metrics"))
NOT_FOR_ALL: Final = "the token 'some' is for some models only (b), and this concerns the whole server"
NOT_FOR: Final = "the token 'some' is not for the model 'identity'"
REFUSALS: Final = {MODEL: NOT_FOR, SERVER: NOT_FOR_ALL}


@pytest.fixture(scope="module")
def rest_api() -> RestApi:
    service = FakeService()
    insight = Insight([], dict, RecentLines())
    api = build_rest_api(service, observer=Observer(LiveSettings()), insight=insight)
    add_reads(api, service, 1000)
    return api


def paths(api: RestApi) -> Iterator[tuple[str, str]]:
    """The routes of the API but the manual's, as the table has them."""
    names = {"model": "{m}", "version": "{v}"}
    for route in api.routes:
        assert isinstance(route, RestRoute)
        if not route.path.startswith("/manual"):
            yield (
                route.method,
                re.sub(r"{(\w+):\w+}", lambda found: names.get(found[1], "{r}"), route.path),
            )


def test_each_route_has_a_rule(rest_api: RestApi) -> None:
    assert {f"{method} {path}" for method, path in paths(rest_api)} == ROUTES.keys()


@pytest.mark.parametrize("route", ROUTES)
def test_route_keeps_its_rule(rest_api: RestApi, route: str) -> None:
    method, path = route.replace("{m}", "identity").replace("{v}", "1").replace("{r}", "r").split(" ")
    ask = rest_api.ask(method, path)
    assert ask is not None and ask.open == (ROUTES[route] == OPEN)
    guard = Guard(Grants([SOME, ALL]), None)
    refused = guard.admit("Bearer some", ask)[1]
    assert (refused and refused.message) == REFUSALS.get(ROUTES[route])
    if "feedback" not in path:
        assert guard.admit("Bearer all", ask)[1] is None


async def test_each_rpc_has_a_rule() -> None:
    methods = GrpcFront(FakeService(), GrpcSettings(reflection=True, tfserving=True)).methods()
    assert methods.keys() == RPCS.keys()


def test_rpcs_keep_their_rules(fronts: Fronts) -> None:
    guard = Guard(Grants([SOME]), None)
    with (
        fronts(guard=guard, allow_tfserving=True) as running,
        grpc.insecure_channel(running.grpc) as channel,
    ):
        for path, (rule, message) in RPCS.items():
            if message is not None:
                asked = told(channel, path, message)
                assert (asked if rule in REFUSALS else "") == REFUSALS.get(rule, ""), path
                assert rule in REFUSALS or not asked.startswith("the token"), path


def told(channel: Any, path: str, message: bytes) -> str:
    """The text of the error of a call; "" without one."""
    try:
        channel.unary_unary(path)(message, timeout=WAIT_S, metadata=[("authorization", "some")])
    except grpc.RpcError as error:
        return str(error.details())
    return ""


def test_metrics_are_of_the_whole_server() -> None:
    refused = Guard(Grants([SOME]), None).admit("Bearer some", METRICS)[1]
    assert refused is not None and refused.message == NOT_FOR_ALL


def test_the_metrics_of_the_whole_server_are_told_by_no_door(
    fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    metrics, vertex = free_port(), free_port()
    more: dict[str, Any] = {"allow_metrics": True, "metrics_port": metrics, "allow_vertex_ai": True}
    more |= {"vertex_ai_port": vertex, "vertex_ai_default_model": "identity"}
    redirect = {"X-Vertex-Ai-Triton-Redirect": "metrics"}
    with fronts(guard=Guard(Grants([SOME, ALL]), None), **more):
        for port, method, path in ((metrics, "GET", "/metrics"), (vertex, "POST", "/predict")):
            for token, status in (("some", 403), ("all", 200)):
                connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
                connection.request(method, path, headers={**of(token), **redirect})
                assert connection.getresponse().status == status
                connection.close()


CHANGES: Final = {
    "log": lambda client, headers: client.update_log_settings({"log_verbose_level": 0}, headers=headers),
    "trace": lambda client, headers: client.update_trace_settings(
        None, {"trace_count": "5"}, headers=headers
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_of_the_server_are_changed_by_tokens_for_all_models(
    running: Running, client: Any, protocol: str, change: Any
) -> None:
    expected = "the token 'other-models' is for some models only (b), and this concerns the whole server"
    status, text = refusal(lambda: change(client, of("other")))
    assert text == expected and status in ("403", "StatusCode.PERMISSION_DENIED")
    change(client, of("manage"))


def test_settings_of_its_own_model_are_changed_by_a_token(fronts: Fronts, protocol: str) -> None:
    service = FakeService()
    service.config.name = "identity"
    token = make_token("mine", name="mine", scope=("manage",), models=("id*",))
    with (
        fronts(service=service, guard=Guard(Grants([token]), None)) as running,
        MODULES[protocol].InferenceServerClient(getattr(running, protocol)) as client,
    ):
        client.update_trace_settings("identity", {"trace_count": "5"}, headers=of("mine"))
        client.get_trace_settings(headers=of("mine"))
        client.get_log_settings(headers=of("mine"))


def test_samples_of_others_are_left_out() -> None:
    grant = Grants([SOME]).find("Bearer some")
    assert grant is not None
    assert grant.sees({"model": "b"}) and grant.sees({"token": "some"}) and grant.sees({"front": "http"})
    assert not grant.sees({"model": "identity"}) and not grant.sees({"token": "all"})


def test_traces_of_other_models_are_left_out(fronts: Fronts) -> None:
    with guarded(fronts) as (running, _):
        connection = HTTPConnection(running.http, timeout=WAIT_S)
        try:
            body = b'{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}'
            traces(connection, "all")  # from now on requests are traced
            connection.request("POST", "/v2/models/identity/infer", body, of("infer"))
            connection.getresponse().read()
            assert [each["spans"][0]["model"] for each in traces(connection, "all")] == ["identity"]
            assert traces(connection, "other") == []
        finally:
            connection.close()


def traces(connection: HTTPConnection, token: str) -> list[Any]:
    connection.request("GET", "/v2/nereid/traces", headers=of(token))
    found: list[Any] = json.loads(connection.getresponse().read())["traces"]
    return found


def test_a_token_for_some_models_is_told_apart() -> None:
    def name(grant: Grant | None) -> str:
        return context_of(grant).run(confined)

    grants = Grants([SOME, ALL])
    assert (name(None), name(grants.find("all")), name(grants.find("some"))) == ("", "", "some")
