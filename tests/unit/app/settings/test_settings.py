"""Settings from the `args` of serve_config.yaml."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.observability.trace_settings import TraceSetting
from app.settings.deprecated import DEPRECATED
from app.settings.flag.errors import SettingsError
from app.settings.flag.ignored import IGNORED
from app.settings.load import from_args
from app.settings.settings import SETTINGS, ServerSettings
from tests.unit.setting_values import value_of

ROOT = Path(__file__).parents[4]


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return str(tmp_path.resolve())


def settings_of(repository: str, **args: Any) -> ServerSettings:
    return from_args({"model_repository": repository, **args})


def test_defaults_are_tritonservers_but_for_the_addresses(repository: str) -> None:
    settings = settings_of(repository)
    expected = {
        "id": "triton",
        "exit_timeout_secs": 30,
        "model_repository": (repository,),
        "model_control_mode": "none",
        "repository_poll_secs": 15,
        "strict_readiness": True,
        "exit_on_error": True,
        "http_address": "127.0.0.1",
        "http_port": 8000,
        "http_max_input_size": 67108864,
        "grpc_address": "127.0.0.1",
        "grpc_port": 8001,
        "metrics_address": "127.0.0.1",
        "metrics_port": 8002,
        "metrics_interval_ms": 2000,
        "rate_limit": "off",
        "allow_client_shm": False,
        "backend_directory": "/opt/tritonserver/backends",
    }
    assert {name: value_of(settings, name) for name in expected} == expected
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("http_port", 9000, 9000),
        ("http_port", "9000", 9000),
        ("allow_grpc", False, False),
        ("allow_grpc", "OFF", False),
        ("allow_grpc", 0, False),
        ("allow_grpc", "True", True),
        ("log_verbose", True, 1),
        ("log_verbose", "false", 0),
        ("log_verbose", 3, 3),
        ("metrics_interval_ms", "500.5", 500.5),
        ("model_control_mode", "EXPLICIT", "explicit"),
        ("log_format", "iso8601", "ISO8601"),
        ("rate_limit", False, "off"),
        ("id", 7, "7"),
        ("backend_config", "onnxruntime,x=1", {"onnxruntime": {"x": "1"}}),
        ("backend_config", ["a,x=1", "y=2"], {"a": {"x": "1"}, "": {"y": "2"}}),
        ("grpc_keepalive_time", 1500, 1.5),
        ("http_port", None, 8000),
    ],
)
def test_values_may_be_text_or_yaml_scalars(
    repository: str, name: str, value: object, expected: object
) -> None:
    assert value_of(settings_of(repository, **{name: value}), name) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"http_port": "abc"}, "http_port: expected an integer, got 'abc'"),
        ({"http_port": 1.5}, "http_port: expected an integer, got 1.5"),
        ({"http_port": True}, "http_port: expected an integer, got True"),
        ({"http_port": 70000}, "http_port: expected an integer from 0 to 65535, got 70000"),
        ({"ingress_replicas": 0}, "ingress_replicas: expected an integer from 1 to 100, got 0"),
        (
            {"allow_http": "maybe"},
            "allow_http: invalid value for bool option: 'maybe', expected true, false, on, off, 1 or 0",
        ),
        ({"metrics_interval_ms": "nan"}, "metrics_interval_ms: expected a number, got 'nan'"),
        ({"id": ["a"]}, "id: expected a string, got ['a']"),
        ({"log_file": True}, "log_file: expected a string, got True"),
        ({"load_model": [["a"]]}, "load_model: expected a string, got ['a']"),
        (
            {"model_control_mode": "auto"},
            "model_control_mode: expected one of none, poll, explicit, got 'auto'",
        ),
        ({"http_prot": 1}, "unknown setting 'http_prot'; did you mean 'http_port'?"),
        ({"http-port": 1}, "unknown setting 'http-port'; did you mean 'http_port'?"),
        ({"qqqqq": 1}, "unknown setting 'qqqqq'"),
        (
            {"load_model": "a"},
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            {"load_model": ["*", "a"], "model_control_mode": "explicit"},
            "Wildcard model name '*' must be the ONLY startup model if specified at all.",
        ),
        ({"http_max_input_size": 0}, "Error: --http-max-input-size must be greater than 0."),
        (
            {"grpc_port": 8000},
            "The server cannot listen to HTTP requests and GRPC requests at the same address and port "
            "127.0.0.1:8000",
        ),
        (
            {"metrics_port": 8001},
            "The server cannot listen to GRPC requests and metrics requests at the same address and port "
            "127.0.0.1:8001",
        ),
        (
            {"backend_config": "onnxruntime,x"},
            "--backend-config option format is '<backend name>,<setting>=<value>'. Got onnxruntime,x",
        ),
        (
            {"backend_config": ",x=1"},
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            "<setting>=<value>. Got ,x=1",
        ),
        ({"metrics_config": "x"}, "--metrics-config option format is <setting>=<value>. Got x"),
        (
            {"metrics_config": ["summary_quantiles=0.5:0.05,0.9:0.01", "local,a=b"]},
            "--metrics-config option format is <setting>=<value>. Got local,a=b",
        ),
        ({"http_restricted_api": "models:key=value"}, "unknown restricted api 'models'"),
        ({"grpc_restricted_protocol": "models:key=value"}, "unknown restricted protocol 'models'"),
        (
            {"http_restricted_api": ["health,metadata:a=b", "inference,health:a=b"]},
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            {"grpc_restricted_protocol": "health=key:value"},
            "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. "
            "Got health=key:value",
        ),
        (
            {"http_header_forward_pattern": "("},
            "--http-header-forward-pattern: '(' is not a regular expression: "
            "missing ), unterminated subpattern at position 0",
        ),
        ({"grpc_use_ssl": True}, "--grpc-use-ssl requires --grpc-server-cert and --grpc-server-key"),
        (
            {"http_use_ssl_mutual": True, "http_server_cert": "c", "http_server_key": "k"},
            "--http-use-ssl-mutual requires --http-root-cert",
        ),
        (
            {"grpc_use_ssl": True, "grpc_server_cert": "no.pem", "grpc_server_key": "k"},
            "--grpc-server-cert: cannot read 'no.pem': No such file or directory",
        ),
        ({"http_thread_count": "x"}, "http_thread_count: expected an integer, got 'x'"),
        (
            {"grpc_infer_thread_count": 1},
            "grpc_infer_thread_count: expected an integer from 2 to 128, got 1",
        ),
        (
            {"grpc_keepalive_time": 2**31},
            "grpc_keepalive_time: expected an integer from 1 to 2147483647, got 2147483648",
        ),
        (
            {"response_cache_byte_size": 1, "cache_config": "local,size=1"},
            "Error: Incompatible flags response_cache_byte_size and cache_config both provided. "
            "Please provide one or the other.",
        ),
    ],
)
def test_wrong_settings_are_refused(repository: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        settings_of(repository, **args)
    assert str(raised.value) == message


def test_repository_must_be_a_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    model = tmp_path / "model"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").touch()
    cases: list[tuple[object, str]] = [
        (None, "model_repository must be specified"),
        ([], "model_repository must be specified"),
        (str(tmp_path / "no"), f"model_repository: directory '{tmp_path}/no' does not exist"),
        (str(file), f"model_repository: '{file}' is not a directory"),
        ("ftp://m", "model_repository: expected a directory, s3://, gs://, as:// or oss://, got 'ftp://m'"),
        (str(model), f"model_repository: '{model}' is a model, not a repository of models: name its parent"),
    ]
    for value, message in cases:
        with pytest.raises(SettingsError) as raised:
            from_args({"model_repository": value})
        assert str(raised.value) == message


def test_repository_may_be_missing_without_exit_on_error(tmp_path: Path) -> None:
    given = {"model_repository": str(tmp_path / "no"), "exit_on_error": "false"}
    assert from_args(given).repository.paths == (str(tmp_path.resolve() / "no"),)
    with pytest.raises(SettingsError, match="expected a directory"):
        from_args({"model_repository": "ftp://m", "exit_on_error": "false"})


def test_repository_paths_become_absolute_and_distinct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("models")
    settings = from_args({"model_repository": ["models", "./models", "link", str(tmp_path)]})
    assert settings.repository.paths == (str(tmp_path / "models"), str(tmp_path))


def test_a_linked_repository_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "link").symlink_to("models")
    settings = from_args({"model_repository": str(tmp_path / "link" / ".." / "link")})
    assert settings.repository.paths == (f"{tmp_path}/link/../link",)


def test_a_repository_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SettingsError, match=r"'.*loop' cannot be opened: Too many levels of symbolic links"):
        from_args({"model_repository": str(tmp_path / "loop")})


def test_metrics_address_defaults_to_that_of_http(repository: str) -> None:
    assert settings_of(repository, http_address="0.0.0.0").metrics.address == "0.0.0.0"
    assert settings_of(repository, metrics_address="10.0.0.1").metrics.address == "10.0.0.1"


@pytest.mark.parametrize(
    "args",
    [
        {"grpc_port": 8000, "allow_grpc": False},
        {"grpc_port": 8000, "grpc_address": "0.0.0.0"},
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        {"load_model": "*", "model_control_mode": "explicit"},
    ],
)
def test_compatible_settings_are_accepted(repository: str, args: dict[str, object]) -> None:
    settings_of(repository, **args)


@pytest.mark.parametrize(
    ("args", "warnings"),
    [
        (
            {"pinned_memory_pool_byte_size": 1},
            ("warning: pinned_memory_pool_byte_size has no effect in Nereid",),
        ),
        ({"trace_config": "level=TENSORS"}, ()),
        ({"rate_limit": "off"}, ()),
        (
            {"strict_model_config": False, "disable_auto_complete_config": True},
            (
                "Warning: '--strict-model-config' has been deprecated! "
                "Please use '--disable-auto-complete-config' instead.",
                "Warning: Overriding deprecated '--strict-model-config' from False to True in favor of "
                "'--disable-auto-complete-config'!",
            ),
        ),
        ({"grpc_infer_response_compression_level": "high", "grpc_header_forward_pattern": "x"}, ()),
        (
            {"strict_model_config": True},
            (
                "Warning: '--strict-model-config' has been deprecated! "
                "Please use '--disable-auto-complete-config' instead.",
            ),
        ),
    ],
)
def test_settings_without_effect_cause_warnings(
    repository: str, args: dict[str, object], warnings: tuple[str, ...]
) -> None:
    assert settings_of(repository, **args).warnings == warnings


@pytest.mark.parametrize(
    ("args", "name", "expected"),
    [
        ({"strict_model_config": True}, "disable_auto_complete_config", True),
        ({"strict_model_config": False}, "disable_auto_complete_config", False),
        (
            {"strict_model_config": False, "disable_auto_complete_config": True},
            "disable_auto_complete_config",
            True,
        ),
        ({"response_cache_byte_size": 1024}, "cache_config", {"local": {"size": "1024"}}),
        (
            {"trace_rate": 5, "trace_level": ["TENSORS"], "trace_config": "rate=7"},
            "trace_config",
            TraceSetting(level=("TENSORS",), rate=7),
        ),
    ],
)
def test_deprecated_names_are_replaced(
    repository: str, args: dict[str, object], name: str, expected: object
) -> None:
    assert value_of(settings_of(repository, **args), name) == expected


def test_model_store_adds_to_model_repository(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    settings = from_args({"model_store": str(tmp_path / "a"), "model_repository": str(tmp_path / "b")})
    assert [Path(path).name for path in settings.repository.paths] == ["a", "b"]
    assert from_args({"model_store": str(tmp_path)}).repository.paths == (str(tmp_path.resolve()),)


def test_settings_can_be_pickled(repository: str) -> None:
    settings = settings_of(repository, load_model="a", model_control_mode="explicit")
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_names_are_unique() -> None:
    names = [*SETTINGS, *IGNORED, *DEPRECATED]
    assert len(names) == len(set(names))
    assert all(setting.flag.help.endswith(".") for setting in SETTINGS.values())


def test_serve_config_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    (application,) = config["applications"]
    settings = from_args(application["args"])
    assert settings.repository.paths == (str(ROOT / "model_repository"),)
    assert settings.warnings == ()


def test_namespace_separator_in_a_repository_name_is_refused(tmp_path: Path) -> None:
    repository = tmp_path / "a::b"
    repository.mkdir()
    from_args({"model_repository": [str(repository)]})
    with pytest.raises(SettingsError, match="has '::' in its name"):
        from_args({"model_repository": [str(repository)], "model_namespacing": True})


def test_settings_that_nothing_reads_are_marked_unused() -> None:
    sources = [path for folder in ("app", "deployments", "nereid") for path in (ROOT / folder).rglob("*.py")]
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert [
        name for name, setting in SETTINGS.items() if setting.flag.unused is (setting.path[-1] in read)
    ] == []


def test_the_removed_grpc_server_is_accepted_with_a_warning(tmp_path: Path) -> None:
    removed = from_args({"model_repository": str(tmp_path), "grpc_front": "grpcio"}).warnings
    assert removed == ("warning: grpc_front has no effect in this version",)
    assert from_args({"model_repository": str(tmp_path), "grpc_front": "http2"}).warnings == ()
