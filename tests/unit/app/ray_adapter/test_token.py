"""Ray's token is this user's alone."""

import os
import stat
from pathlib import Path

import pytest

from app.ray_adapter.token import require_token


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # so that it is taken back
        monkeypatch.delenv(name)
    return tmp_path


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_token_is_made_that_nobody_else_can_read(home: Path) -> None:
    require_token()
    token = home / ".ray" / "auth_token"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert _mode(token) == 0o600 and len(token.read_text()) == 64
    assert os.listdir(token.parent) == ["auth_token"]
    first = token.read_text()
    require_token()
    assert token.read_text() == first


def test_a_token_that_ray_has_made_is_closed_to_others(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    require_token()
    assert _mode(token) == 0o600 and token.read_text() == "secret"


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x"), ("RAY_ADDRESS", "a:1")]
)
def test_where_the_token_is_not_ours_to_make(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    require_token()
    assert not (home / ".ray").exists()
    assert os.environ[name] == value


def test_without_a_home_ray_says_what_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
