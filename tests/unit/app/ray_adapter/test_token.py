"""Ray's token is private to this user."""

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


def test_token_file_is_private(home: Path) -> None:
    require_token()
    token = home / ".ray" / "auth_token"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert _mode(token) == 0o600 and len(token.read_text()) == 64
    assert os.listdir(token.parent) == ["auth_token"]
    first = token.read_text()
    require_token()
    assert token.read_text() == first


def test_existing_token_file_is_made_private(home: Path) -> None:
    token = home / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("secret")
    token.chmod(0o644)
    require_token()
    assert _mode(token) == 0o600 and token.read_text() == "secret"


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "x"), ("RAY_ADDRESS", "a:1")]
)
def test_token_of_another_source_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    require_token()
    assert not (home / ".ray").exists()
    assert os.environ[name] == value


def test_token_is_private_without_a_home_to_write_to(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setattr("tempfile.tempdir", str(home))
    require_token()
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token == home / f"nereid-{os.getuid()}" / "auth_token"
    assert _mode(token) == 0o600 and len(token.read_text()) == 64


def test_missing_home_is_left_to_ray_in_another_cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    require_token()
    assert os.environ["RAY_AUTH_MODE"] == "token" and "RAY_AUTH_TOKEN_PATH" not in os.environ
