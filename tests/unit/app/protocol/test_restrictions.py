"""Which requests belong to which restricted category."""

import re

import pytest
from tritonclient.grpc import service_pb2 as pb

from app.ingress.rest.management import build_rest_api
from app.protocol.restrictions import (
    CATEGORIES,
    GRPC_PREFIX,
    Restriction,
    category_of_method,
    category_of_path,
    parse_restrictions,
)
from tests.unit.app.http_fakes import FakeService

HTTP = ("http-restricted-api", "api")


@pytest.mark.parametrize(
    ("path", "category"),
    [
        ("/v2", "metadata"),
        ("/v2/health/live", "health"),
        ("/v2/health/ready", "health"),
        ("/v2/models/m", "metadata"),
        ("/v2/models/m/versions/1", "metadata"),
        ("/v2/models/m/ready", "health"),
        ("/v2/models/m/versions/1/ready", "health"),
        ("/v2/models/m/config", "model-config"),
        ("/v2/models/m/infer", "inference"),
        ("/v2/models/m/versions/12/infer", "inference"),
        ("/v2/models/m/generate", "inference"),
        ("/v2/models/m/versions/1/generate_stream", "inference"),
        ("/v2/models/stats", "statistics"),
        ("/v2/models/stats/ready", "health"),
        ("/v2/models/m/versions/1/stats", "statistics"),
        ("/v2/models/m/trace/setting", "trace"),
        ("/v2/trace/setting", "trace"),
        ("/v2/repository/index", "model-repository"),
        ("/v2/repository/r/index", "model-repository"),
        ("/v2/repository/models/m/load", "model-repository"),
        ("/v2/repository/r/models/m/unload", "model-repository"),
        ("/v2/systemsharedmemory/status", "shared-memory"),
        ("/v2/systemsharedmemory/region/r/register", "shared-memory"),
        ("/v2/cudasharedmemory/unregister", "shared-memory"),
        ("/v2/logging", "logging"),
        ("/v2/", ""),
        ("/v2/models/m/infer/", ""),
        ("/v2/models/m/versions/x/infer", ""),
        ("/metrics", ""),
    ],
)
def test_category_of_a_path(path, category):
    assert category_of_path(path) == category


def test_every_route_of_the_rest_api_has_a_category():
    paths = {re.sub(r"{\w+:\w+}", "1", route.path) for route in build_rest_api(FakeService()).routes}
    assert len(paths) > 10
    assert [path for path in paths if category_of_path(path) not in CATEGORIES] == []


def test_every_rpc_has_a_category():
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert len(methods) >= 20
    for name in methods:
        assert category_of_method(f"/inference.GRPCInferenceService/{name}") in CATEGORIES, name
    assert category_of_method("/grpc.health.v1.Health/Check") == "health"
    assert category_of_method("/inference.GRPCInferenceService/Nothing") == ""


def test_parsing():
    found = parse_restrictions(["inference,trace:Key=a=b:c", "health:k=v"], *HTTP, GRPC_PREFIX)
    assert found == {
        "inference": Restriction("triton-grpc-protocol-Key", "a=b:c"),
        "trace": Restriction("triton-grpc-protocol-Key", "a=b:c"),
        "health": Restriction("triton-grpc-protocol-k", "v"),
    }


@pytest.mark.parametrize("entry", ["", "health", "health:key", "health:=v", "health:key=", ":key=v", "a=b:c"])
def test_another_form_is_refused(entry):
    with pytest.raises(ValueError) as refused:
        parse_restrictions([entry], *HTTP)
    assert str(refused.value) == (
        f"--http-restricted-api option format is '<config name>:<setting>=<value>'. Got {entry}"
    )


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (["health,heath:k=v"], "unknown restricted api 'heath'"),
        (["health,:k=v"], "unknown restricted api ''"),
        (["health,health:k=v"], "restricted api 'health' can not be specified in multiple config groups"),
        (["trace:k=v", "trace:k=v"], "restricted api 'trace' can not be specified in multiple config groups"),
    ],
)
def test_categories_are_known_and_in_one_group(entries, text):
    with pytest.raises(ValueError) as refused:
        parse_restrictions(entries, *HTTP)
    assert str(refused.value) == text


def test_a_value_must_be_the_whole_one():
    restriction = Restriction("key", "välue")
    assert restriction.met_by("välue".encode())
    assert not any(map(restriction.met_by, (None, b"", b"value", "väluex".encode(), "välu".encode())))
