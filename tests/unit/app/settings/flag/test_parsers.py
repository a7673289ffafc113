"""Flags with a grammar of their own, as their users receive them."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from app.core.observability.metrics_config import MetricsConfig
from app.core.tensors import InferRequest
from app.protocol.restrictions import GRPC_PREFIX, Restriction
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return str(tmp_path)


def settings_of(repository: str, **args: Any) -> ServerSettings:
    return from_args({"model_repository": repository, **args})


def test_backend_and_metrics_settings_are_parsed(repository: str) -> None:
    settings = settings_of(
        repository,
        backend_config=[
            "onnxruntime,a=1",
            "onnxruntime,b=c=d",
            "python,x=/a,b",
            "all=yes",
            "onnxruntime,a=2",
        ],
        metrics_config=["summary_latencies=true", "summary_quantiles=0.5:0.05,0.9:0.01"],
    )
    assert settings.backends.config == {
        "onnxruntime": {"a": "2", "b": "c=d"},
        "python": {"x": "/a,b"},
        "": {"all": "yes"},
    }
    assert settings.metrics.config == MetricsConfig(summaries=True, quantiles=(0.5, 0.9))


def test_rate_limits_are_parsed(repository: str) -> None:
    entries = ["r:4", "r:2:0", "s:1"]
    on = settings_of(repository, rate_limit="execution_count", rate_limit_resource=entries)
    assert on.rate_limiter.limits == {-1: {"r": 4, "s": 1}, 0: {"r": 2}} and not on.warnings
    assert settings_of(repository, rate_limit="execution_count").rate_limiter.limits == {}
    assert settings_of(repository, rate_limit_resource=entries).rate_limiter.limits is None


def test_host_policies_are_parsed(repository: str) -> None:
    entries = ["cpu,cpu-cores=0-1,3-4", "cpu,numa-node=0", "gpu_0,numa-node=1"]
    read = settings_of(repository, host_policy=entries)
    assert read.devices.host_policies == {
        "cpu": {"cpu-cores": "0-1,3-4", "numa-node": "0"},
        "gpu_0": {"numa-node": "1"},
    }
    assert not read.warnings


def test_path_prefixes_are_whole_components_the_longest_first(repository: str) -> None:
    http1 = settings_of(repository, http_path_prefix=["/api/", "/api/predict/a.b"]).http.http1
    assert http1.path_prefixes == ("/api/predict/a.b", "/api")
    for prefix in ("", "/", "api", "/a b", "/a//b", "/a?b", "/v2", "/v2/x", "/v1", "/a%20", "/é"):
        with pytest.raises(SettingsError, match="--http-path-prefix: "):
            settings_of(repository, http_path_prefix=[prefix])


@pytest.mark.parametrize(
    ("name", "form"),
    [
        (
            "rate_limit_resource",
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
            "'<resource_name>:<count>'. Got x",
        ),
        ("host_policy", "--host-policy option format is '<policy name>,<setting>=<value>'. Got x"),
    ],
)
def test_malformed_policies_and_resources_are_refused(repository: str, name: str, form: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings_of(repository, **{name: ["x"]})
    assert str(caught.value) == form


def test_parsed_objects_can_be_pickled(repository: str) -> None:
    settings = settings_of(
        repository, http_header_forward_pattern="^x-", http_restricted_api="trace:key=value"
    )
    copy = pickle.loads(pickle.dumps(settings))
    assert copy.http.restrictions == {"trace": Restriction("key", "value")}
    request = copy.http.forwarder.forward(InferRequest("m", "", ()), [("x-a", "1"), ("b", "2")])
    assert request.parameters == {"x-a": "1"}


@pytest.mark.parametrize(
    ("flag", "front", "prefix"),
    [("http_restricted_api", "http", ""), ("grpc_restricted_protocol", "grpc", GRPC_PREFIX)],
)
def test_restrictions_are_read_from_files(
    repository: str, tmp_path: Path, flag: str, front: str, prefix: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# keys of operators\n\ntrace,logging:key=secret=1\n")
    args = {"model_repository": repository, flag: "health:key=value", f"{flag}_file": str(keys)}
    secret = Restriction(f"{prefix}key", "secret=1")
    expected = {"health": Restriction(f"{prefix}key", "value"), "trace": secret, "logging": secret}
    assert getattr(from_args(args), front).restrictions == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--http-restricted-api-file: cannot read '{}': No such file or directory"),
        (b"\xff", "--http-restricted-api-file: cannot read '{}': it is not text in UTF-8"),
        (b"models:key=value", "unknown restricted api 'models'"),
    ],
)
def test_wrong_files_of_restrictions_are_refused(
    repository: str, tmp_path: Path, content: bytes | None, message: str
) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        from_args({"model_repository": repository, "http_restricted_api_file": str(keys)})
    assert str(raised.value) == message.format(keys)


def test_name_of_configurations_may_not_be_empty(repository: str) -> None:
    assert settings_of(repository).repository.config_name == ""
    assert settings_of(repository, model_config_name="h100").repository.config_name == "h100"
    with pytest.raises(SettingsError, match=r"^empty argument for --model-config-name$"):
        settings_of(repository, model_config_name="")
