"""Settings of tokens and of the audit, and the warning of a server that asks for none."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.access.token_file import change_tokens
from app.access.tokens import append, make_token
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args
from app.settings.settings import ServerSettings
from tests.certificates import Authority


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    token = make_token("secret", name="a", scope=("infer",))
    change_tokens(str(path), partial(append, token=token))
    return path


def settings_of(directory: Path, **args: Any) -> ServerSettings:
    return from_args({"model_repository": str(directory), **args})


def test_paths_are_absolute_for_processes_that_run_elsewhere(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    access = settings_of(tmp_path, auth_tokens_file="tokens", audit_log="audit").access
    assert (access.tokens_file, access.audit_log) == (str(tokens), str(tmp_path / "audit"))


@pytest.mark.parametrize(
    ("name", "path", "reason"),
    [
        ("auth_tokens_file", "absent", "No such file or directory"),
        ("auth_tokens_file", "open", "others than its owner may use it: chmod 600 it"),
        ("auth_tokens_file", "broken", "line 1: "),
        ("auth_tokens_file", "binary", "'utf-8' codec"),
        ("audit_log", "absent/audit", "No such file or directory"),
        ("audit_log", ".", "Is a directory"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path: Path, name: str, path: str, reason: str) -> None:
    for file, data in (("open", b""), ("broken", b"{"), ("binary", b"\xff")):
        (tmp_path / file).write_bytes(data)
        (tmp_path / file).chmod(0o604 if file == "open" else 0o600)
    with pytest.raises(SettingsError) as refused:
        settings_of(tmp_path, **{name: str(tmp_path / path)})
    flag = name.replace("_", "-")
    assert str(refused.value).startswith(f"--{flag}: '{tmp_path / path}': {reason}")


@pytest.mark.parametrize(
    ("args", "fronts"),
    [
        ({}, ()),
        ({"http_address": "localhost", "grpc_address": "127.1.2.3"}, ()),
        ({"http_address": "::1", "grpc_address": "[::1]"}, ()),
        ({"http_address": "0.0.0.0"}, ("http",)),
        ({"http_address": "0.0.0.0", "grpc_address": "::"}, ("http", "grpc")),
        ({"grpc_address": "gpu-7"}, ("grpc",)),
        ({"http_address": "0.0.0.0", "allow_http": False}, ()),
    ],
)
def test_a_front_that_the_network_reaches_causes_a_warning(
    tmp_path: Path, args: dict[str, Any], fronts: tuple[str, ...]
) -> None:
    settings = settings_of(tmp_path, **args)
    assert [warning.split("=")[0] for warning in settings.warnings] == [
        f"warning: --{front}-address" for front in fronts
    ]
    assert settings.audits == bool(fronts)


def test_tokens_or_client_certificates_need_no_warning(tmp_path: Path, tokens: Path) -> None:
    everywhere = {"http_address": "0.0.0.0", "grpc_address": "0.0.0.0"}
    asking = settings_of(tmp_path, **everywhere, auth_tokens_file=str(tokens))
    assert asking.warnings == () and asking.audits
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    files = {"server_cert": str(pair.cert), "server_key": str(pair.key), "root_cert": str(authority.root)}
    for use, warned in (("use_ssl", 2), ("use_ssl_mutual", 0)):
        flags = {f"{f}_{name}": path for f in ("http", "grpc") for name, path in files.items()}
        flags |= {f"{front}_{use}": "true" for front in ("http", "grpc")}
        assert len(settings_of(tmp_path, **everywhere, **flags).warnings) == warned


def test_management_is_recorded_where_a_file_is_named(tmp_path: Path) -> None:
    assert settings_of(tmp_path, audit_log=str(tmp_path / "audit")).audits


@pytest.mark.parametrize(
    ("budget", "args", "said"),
    [
        ("5 core-seconds/h", {"cost": "false"}, "'b' has a budget, which --cost=false would not hold"),
        ("5 EUR/d", {}, "has a budget of '5 EUR/d', but there is no price file; --cost-prices names one"),
        ("5 USD/d", {"cost_prices": "prices"}, "but the price file is in EUR"),
    ],
)
def test_budgets_that_nothing_would_hold_are_refused(
    tmp_path: Path,
    tokens: Path,
    budget: str,
    args: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices").write_text("currency: EUR\n")
    token = make_token("other", name="b", scope=("infer",), budget=budget)
    change_tokens(str(tokens), partial(append, token=token))
    with pytest.raises(SettingsError, match=said):
        settings_of(tmp_path, auth_tokens_file=str(tokens), **args)


def test_budgets_with_prices_of_their_currency_are_held(tmp_path: Path, tokens: Path) -> None:
    (tmp_path / "prices").write_text("currency: EUR\n")
    token = make_token("other", name="b", scope=("infer",), budget="5 EUR/d")
    change_tokens(str(tokens), partial(append, token=token))
    settings_of(tmp_path, auth_tokens_file=str(tokens), cost_prices=str(tmp_path / "prices"))
