"""The settings of a server as flags, for people."""

from pathlib import Path

from app.settings.flag.in_effect import in_effect
from app.settings.load import from_args
from app.settings.settings import SETTINGS


def test_flags_have_their_values_as_on_a_command_line(tmp_path: Path) -> None:
    given = {
        "model_repository": str(tmp_path),
        "http_port": 0,
        "grpc_keepalive_time": 1500,
        "load_model": ["a", "b"],
        "model_control_mode": "explicit",
        "log_info": "false",
    }
    found = {each.flag: each for each in in_effect(from_args(given), SETTINGS)}
    values = {flag: found[flag].value for flag in ("--http-port", "--grpc-keepalive-time", "--load-model")}
    assert values == {"--http-port": "0", "--grpc-keepalive-time": "1500", "--load-model": "a, b"}
    assert found["--log-info"].value == "false" and found["--log-info"].changed
    assert not found["--grpc-port"].changed and found["--grpc-port"].value == "8001"
    assert all(each.help for each in found.values()) and len(found) > 80


def test_what_may_be_secret_is_left_out(tmp_path: Path) -> None:
    given = {
        "model_repository": str(tmp_path),
        "http_restricted_api": ["model-repository:admin=hidden-key"],
        "cache_config": ["redis,host=h", "redis,password=hidden-key"],
        "backend_config": ["python,key=hidden-key"],
    }
    assert "hidden-key" not in str(list(in_effect(from_args(given), SETTINGS)))
