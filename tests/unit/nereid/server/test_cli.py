"""The `nereid` command line."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from app.core.installed.installation import server_version
from app.core.observability.trace_settings import TraceSetting
from app.settings.deprecated import DEPRECATED
from app.settings.flag.errors import SettingsError
from app.settings.flag.flags import Setting
from app.settings.flag.ignored import IGNORED
from app.settings.settings import SETTINGS, ServerSettings
from nereid.server.cli import HINT, TextRequested, main, parse, usage
from tests.server import ROOT
from tests.unit.setting_values import value_of

# fmt: off
TRITONSERVER_FLAGS = [
    "id", "exit-timeout-secs", "log-verbose", "log-info", "log-warning", "log-error", "log-format",
    "log-file", "model-store", "model-repository", "exit-on-error", "disable-auto-complete-config",
    "strict-readiness", "model-control-mode", "repository-poll-secs", "load-model", "model-config-name",
    "model-load-thread-count", "model-load-retry-count", "model-namespacing", "enable-peer-access",
    "strict-model-config", "allow-http", "http-address", "http-port", "reuse-http-port",
    "http-header-forward-pattern", "http-thread-count", "http-max-input-size", "http-restricted-api",
    "allow-grpc", "grpc-address", "grpc-port", "reuse-grpc-port", "grpc-header-forward-pattern",
    "grpc-infer-thread-count", "grpc-infer-allocation-pool-size", "grpc-max-response-pool-size",
    "grpc-use-ssl", "grpc-use-ssl-mutual", "grpc-server-cert", "grpc-server-key", "grpc-root-cert",
    "grpc-infer-response-compression-level", "grpc-keepalive-time", "grpc-keepalive-timeout",
    "grpc-keepalive-permit-without-calls", "grpc-http2-max-pings-without-data",
    "grpc-http2-min-recv-ping-interval-without-data", "grpc-http2-max-ping-strikes",
    "grpc-max-connection-age", "grpc-max-connection-age-grace", "grpc-restricted-protocol",
    "allow-metrics", "allow-gpu-metrics", "allow-cpu-metrics", "metrics-address", "metrics-port",
    "metrics-interval-ms", "metrics-config", "allow-sagemaker", "sagemaker-port",
    "sagemaker-safe-port-range", "sagemaker-thread-count", "allow-vertex-ai", "vertex-ai-port",
    "vertex-ai-thread-count", "vertex-ai-default-model", "trace-config", "trace-file", "trace-level",
    "trace-rate", "trace-count", "trace-log-frequency", "backend-directory", "backend-config",
    "repoagent-directory", "cache-config", "cache-directory", "response-cache-byte-size", "rate-limit",
    "rate-limit-resource", "pinned-memory-pool-byte-size", "cuda-memory-pool-byte-size",
    "cuda-virtual-address-size", "min-supported-compute-capability", "buffer-manager-thread-count",
    "host-policy", "model-load-gpu-limit", "allow-client-shm",
]
# fmt: on

# What tritonserver takes a flag for when it is not given, "" and () for nothing; the addresses differ here.
# fmt: off
DEFAULTS = {
    "id": "triton", "exit-timeout-secs": 30, "log-verbose": 0, "log-info": True, "log-warning": True,
    "log-error": True, "log-format": "default", "log-file": "", "exit-on-error": True,
    "disable-auto-complete-config": False, "strict-readiness": True, "model-control-mode": "none",
    "repository-poll-secs": 15, "load-model": (), "model-config-name": "", "model-load-thread-count": 4,
    "model-load-retry-count": 0, "model-namespacing": False, "enable-peer-access": True, "allow-http": True,
    "http-port": 8000, "reuse-http-port": False, "http-header-forward-pattern": "", "http-thread-count": 8,
    "http-max-input-size": 67108864, "http-restricted-api": (), "allow-grpc": True, "grpc-port": 8001,
    "reuse-grpc-port": False, "grpc-header-forward-pattern": "", "grpc-infer-thread-count": 2,
    "grpc-infer-allocation-pool-size": 8, "grpc-max-response-pool-size": 2147483647, "grpc-use-ssl": False,
    "grpc-use-ssl-mutual": False, "grpc-server-cert": "", "grpc-server-key": "", "grpc-root-cert": "",
    "grpc-infer-response-compression-level": "none", "grpc-keepalive-time": 7200000,
    "grpc-keepalive-timeout": 20000, "grpc-keepalive-permit-without-calls": False,
    "grpc-http2-max-pings-without-data": 2, "grpc-http2-min-recv-ping-interval-without-data": 300000,
    "grpc-http2-max-ping-strikes": 2, "grpc-max-connection-age": 0, "grpc-max-connection-age-grace": 0,
    "grpc-restricted-protocol": (), "allow-metrics": True, "allow-gpu-metrics": True, "allow-cpu-metrics":
    True, "metrics-port": 8002, "metrics-interval-ms": 2000, "metrics-config": (), "allow-sagemaker": False,
    "sagemaker-port": 8080, "sagemaker-safe-port-range": "", "sagemaker-thread-count": 8, "allow-vertex-ai":
    False, "vertex-ai-port": 8080, "vertex-ai-thread-count": 8, "vertex-ai-default-model": "",
    "trace-config": (), "backend-directory": "/opt/tritonserver/backends", "backend-config": (),
    "repoagent-directory": "", "cache-config": (), "cache-directory": "/opt/tritonserver/caches",
    "rate-limit": "off", "rate-limit-resource": (), "pinned-memory-pool-byte-size": 268435456,
    "cuda-memory-pool-byte-size": (), "cuda-virtual-address-size": (), "min-supported-compute-capability":
    6.0, "buffer-manager-thread-count": 0, "host-policy": (), "model-load-gpu-limit": (),
    "allow-client-shm": False,
}
# fmt: on

VALUES = {"bool": "false", "int": "1", "float": "1"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)


def parsed(*flags: str) -> ServerSettings:
    return parse(["--model-repository=models", *flags])


def flag_with_value(flag: str) -> str:
    """A flag of tritonserver with a value it takes."""
    special = {
        "model-store": "models",
        "model-repository": "models",
        "trace-rate": "1",
        "response-cache-byte-size": "1",
        "strict-model-config": "false",
        "http-restricted-api": "inference:key=value",
        "grpc-restricted-protocol": "inference:key=value",
        "grpc-infer-thread-count": "4",
        "backend-config": "a,b=c",
        "metrics-config": "b=c",
        "cache-config": "local,size=1",
        "trace-config": "rate=1",
        "trace-level": "OFF",
        "trace-count": "1",
        "trace-log-frequency": "1",
        "rate-limit-resource": "R:1",
        "host-policy": "p,numa-node=0",
        "cuda-memory-pool-byte-size": "0:1",
        "cuda-virtual-address-size": "0:1",
        "model-load-gpu-limit": "0:0.5",
        "sagemaker-safe-port-range": "8000-9000",
    }
    name = flag.replace("-", "_")
    setting = SETTINGS.get(name) or IGNORED.get(name)
    if setting and setting.flag.bare:
        return f"--{flag}"
    if setting and setting.flag.choices:
        return f"--{flag}={setting.flag.choices[0]}"
    kind = getattr(setting.type, "__name__", "") if setting else ""
    return f"--{flag}={special.get(flag, VALUES.get(kind, 'x'))}"


@pytest.mark.parametrize("flag", TRITONSERVER_FLAGS)
def test_every_flag_of_tritonserver_is_known(flag: str) -> None:
    extra = ["--model-control-mode=explicit"] if flag == "load-model" else []
    warnings = parsed(flag_with_value(flag), *extra).warnings
    name = flag.replace("-", "_")
    assert all(f"--{flag}" in warning for warning in warnings[:1])
    assert len(warnings) <= (2 if name in DEPRECATED else 1), "what it became may have no effect yet"
    if name in IGNORED:
        assert warnings == (f"warning: --{flag} has no effect in Nereid",)


# fmt: off
REPEATED = [
    "model-repository", "load-model", "http-restricted-api", "grpc-restricted-protocol", "metrics-config",
    "trace-config", "trace-level", "backend-config", "cache-config", "rate-limit-resource",
    "cuda-memory-pool-byte-size", "cuda-virtual-address-size", "host-policy", "model-load-gpu-limit",
]
# fmt: on


@pytest.mark.parametrize("flag", REPEATED)
def test_a_repeatable_flag_keeps_every_value(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("more").mkdir()
    first = flag_with_value(flag)
    second = {
        "model-repository": "--model-repository=more",
        "http-restricted-api": "--http-restricted-api=health:key=value",
        "grpc-restricted-protocol": "--grpc-restricted-protocol=health:key=value",
        "rate-limit-resource": "--rate-limit-resource=S:1",
    }.get(flag, first)
    repository = [] if flag == "model-repository" else ["--model-repository=models"]
    extra = ["--model-control-mode=explicit"] if flag == "load-model" else []
    name = flag.replace("-", "_")
    row, read = "trace_config" if name == "trace_level" else name, []

    def keep(setting: Setting, value: object, label: str) -> object:
        read.extend(value if setting.name == row and isinstance(value, list) else [])
        return real(setting, value, label)

    real = Setting.read
    monkeypatch.setattr(Setting, "read", keep)
    settings = parse([*repository, *extra, first, second])
    if name in IGNORED:
        assert settings.warnings == (f"warning: --{flag} has no effect in Nereid",), "once"
        return
    given = [text.rpartition("=")[2] for text in (first, second)]
    kept = list(settings.repository.paths) if name == "model_repository" else read
    assert len(kept) == 2 and all(text.endswith(value) for text, value in zip(kept, given, strict=True))


PAIRS = [
    (flag, value, f"--{flag}: {text}")
    for flag, between in (
        ("cuda-memory-pool-byte-size", ":"),
        ("cuda-virtual-address-size", ":"),
        ("model-load-gpu-limit", ":"),
        ("sagemaker-safe-port-range", "-"),
    )
    for value, text in (
        (
            "1",
            "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires "
            f"format <first>{between}<second>. Found: 1",
        ),
        (f"1{between}x", "Invalid option value. Got x"),
    )
]


@pytest.mark.parametrize(("flag", "value", "text"), PAIRS)
def test_pairs_of_numbers_are_checked(flag: str, value: str, text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parsed(f"--{flag}={value}")
    assert str(refused.value) == text


def test_defaults_are_tritonservers() -> None:
    rows = SETTINGS | IGNORED
    assert {flag: rows[flag.replace("-", "_")].default for flag in DEFAULTS} == DEFAULTS
    assert parsed().warnings == ()


def test_table_of_defaults_covers_every_flag() -> None:
    old = {name.replace("_", "-") for name in (*DEPRECATED, "strict_model_config")}
    addresses = {"http-address", "grpc-address", "metrics-address"}
    assert set(TRITONSERVER_FLAGS) == DEFAULTS.keys() | old | addresses | {"model-repository"}


@pytest.mark.parametrize(
    ("flags", "name", "expected"),
    [
        (["--http-port=9000"], "http_port", 9000),
        (["--http-port", "9000"], "http_port", 9000),
        (["--http-p", "9000"], "http_port", 9000),  # --http-path-prefix is ours, and so no other choice
        (["--http-read=9"], "http_read_timeout_secs", 9),
        (["--http-port=1", "--http-port=2"], "http_port", 2),
        (["--allow-grpc=OFF"], "allow_grpc", False),
        (["--log-verbose=true"], "log_verbose", 1),
        (["--disable-auto"], "disable_auto_complete_config", True),
        (
            ["--backend-config=a,b=c", "--backend-config", "d=e"],
            "backend_config",
            {"a": {"b": "c"}, "": {"d": "e"}},
        ),
        (["--id", "--http-port"], "id", "--http-port"),
        (["--id="], "id", ""),
        (["--id=a=b"], "id", "a=b"),
        (["--strict-model-config=false", "--strict-model-config=true"], "disable_auto_complete_config", True),
        (["--trace-level=TENSORS", "--trace-level=OFF"], "trace_config", TraceSetting()),
        (["--ingress-replicas=2"], "ingress_replicas", 2),
        (["--"], "http_port", 8000),
    ],
)
def test_flags_are_parsed_in_every_spelling(flags: Sequence[str], name: str, expected: object) -> None:
    assert value_of(parsed(*flags), name) == expected


def test_repositories_are_collected_from_all_flags() -> None:
    Path("more").mkdir()
    settings = parse(["--model-repository=models", "--model-store", "more", "--model-repo=models"])
    assert [Path(path).name for path in settings.repository.paths] == ["more", "models"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--model-repository must be specified"),
        (["--model-repository=no"], "--model-repository: directory 'no' does not exist"),
        (["--http-prot=1"], "unrecognized option '--http-prot'; did you mean '--http-port'?"),
        (["--http_port=1"], "unrecognized option '--http_port'; did you mean '--http-port'?"),
        (["--zzz"], "unrecognized option '--zzz'"),
        (
            ["--reuse"],
            "option '--reuse' is ambiguous; possibilities: '--reuse-http-port' '--reuse-grpc-port'",
        ),
        (["--http-port"], "option '--http-port' requires an argument"),
        (
            ["--disable-auto-complete-config=true"],
            "option '--disable-auto-complete-config' doesn't allow an argument",
        ),
        (["models"], "Unexpected argument: models; did you mean 'nereid --model-repository=models'?"),
        (["nothing"], "Unexpected argument: nothing"),
        (["chek", "models"], "Unexpected argument: chek; did you mean 'nereid check'?"),
        (["-v"], "Unexpected argument: -v"),
        (["--", "nothing"], "Unexpected argument: nothing"),
        (["--http-port=x"], "--http-port: expected an integer, got 'x'"),
        (
            ["--allow-http=perhaps"],
            "--allow-http: invalid value for bool option: 'perhaps', expected true, false, on, off, 1 or 0",
        ),
        (
            ["--model-repository=models", "--load-model=a"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.",
        ),
        (
            ["--model-repository=models", "--grpc-use-ssl=true", "--grpc-server-cert=a.pem"],
            "--grpc-use-ssl requires --grpc-server-key",
        ),
    ],
)
def test_wrong_command_lines_are_refused(flags: Sequence[str], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        parse(flags)
    assert str(raised.value) == message


def test_flag_without_effect_causes_one_warning() -> None:
    settings = parsed("--cuda-memory-pool-byte-size=0:1", "--cuda-memory-pool-byte-size=1:1")
    assert settings.warnings == ("warning: --cuda-memory-pool-byte-size has no effect in Nereid",)


def test_ignored_flags_are_tritonservers() -> None:
    assert {name.replace("_", "-") for name in IGNORED} <= set(TRITONSERVER_FLAGS)


@pytest.mark.parametrize("flag", ["--help", "--he", "-h"])
def test_help_is_requested_by_any_prefix(flag: str) -> None:
    with pytest.raises(TextRequested):
        parse([flag])


def test_usage_lists_every_setting() -> None:
    text = usage()
    for name in SETTINGS:
        assert f"  --{name.replace('_', '-')}" in text
    assert "  --http-port <integer>\n\tPort for HTTP; 0 for a free one. Default: 8000." in text
    assert "  --disable-auto-complete-config\n\tUse" in text
    assert "  --model-control-mode <none|poll|explicit>\n" in text


def test_main_runs_the_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[ServerSettings] = []

    def run(settings: ServerSettings) -> int:
        ran.append(settings)
        return 3

    module = ModuleType("nereid.server.launcher")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nereid.server.launcher", module)
    with pytest.raises(SystemExit) as exited:
        main(["--model-repository=models", "--http-thread-count=4"])
    assert exited.value.code == 3
    assert [settings.http.port for settings in ran] == [8000]
    assert capsys.readouterr().err == "warning: --http-thread-count has no effect in Nereid\n"


def test_main_exits_with_an_error_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        main(["--http-port=x"])
    assert exited.value.code == f"--http-port: expected an integer, got 'x'\n{HINT}"


@pytest.mark.parametrize("flag", ["--version", "--vers"])
def test_main_prints_the_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([flag])
    name, version = capsys.readouterr().out.split()
    assert (name, version) == ("nereid", server_version())


def test_help_into_a_closed_pipe_prints_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "nereid", "--help"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        timeout=60,
    )
    os.close(writing)
    assert done.stderr == b""


def test_main_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    assert capsys.readouterr().out == usage() + "\n"


@pytest.mark.parametrize("service", ["http", "grpc"])
def test_port_in_use_is_refused_unless_reuse_is_allowed(service: str) -> None:
    from app.settings.ports import check_ports

    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ["--http-port=0", "--grpc-port=0", "--metrics-port=0", f"--{service}-port={port}"]
        with pytest.raises(SettingsError) as refused:
            check_ports(parsed(*flags))
        check_ports(parsed(*flags, f"--reuse-{service}-port=true"))
    assert str(refused.value) == (
        f"failed to start {service.upper()} service: Unavailable - Socket '127.0.0.1:{port}' already in use"
    )


def test_text_that_the_terminal_cannot_show_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "café" / "1").mkdir(parents=True)
    (tmp_path / "café" / "config.pbtxt").write_text('backend: "identity"')
    command = [sys.executable, "-m", "nereid", "check", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "caf\\xe9" in done.stdout
    assert "Traceback" not in done.stderr
