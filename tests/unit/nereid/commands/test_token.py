"""`nereid token`."""

from pathlib import Path

import pytest

from app.access.token_file import read_tokens
from app.access.tokens import digest
from nereid.server.cli import main


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as exited:
        main(["token", *words])
    assert isinstance(exited.value.code, int)
    return exited.value.code


def test_new_prints_the_token_once_and_keeps_its_hash(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--models=a*,b", "--rate=100/s", "--concurrency=8", "--budget=5 EUR/d", "--name=ci")
    assert run("new", "--scope", "infer,metrics", *options, "--file=mine") == 0
    output = capsys.readouterr()
    (secret,) = output.out.split()
    (token,) = read_tokens("mine")
    assert token.sha256 == digest(secret) and secret not in Path("mine").read_text() + output.err
    assert (token.name, token.scope, token.models) == ("ci", ("infer", "metrics"), ("a*", "b"))
    assert (token.rate, token.concurrency, token.budget) == ("100/s", 8, "5 EUR/d")


def test_names_are_made_up_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "--scope=infer") == run("new", "--scope=manage", "--rate=5/m") == 0
    capsys.readouterr()
    assert run("list") == 0
    heading, first, second = map(str.split, capsys.readouterr().out.splitlines())
    assert heading == ["name", "scope", "models", "rate", "concurrency", "budget"]
    assert first[1:] == ["infer", "*", "-", "-", "-"] and second[1:] == ["manage", "*", "5/m", "-", "-"]
    assert first[0].startswith("client-") and first[0] != second[0]


@pytest.mark.parametrize("user", [0, 1000])
def test_a_file_that_root_makes_has_to_be_given_to_the_server(
    user: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user)
    for made in (True, False):
        assert run("new", "--scope=infer") == 0
        assert ("tokens.jsonl is root's alone: chown it" in capsys.readouterr().err) is (made and not user)


def test_revoke_takes_a_token_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "--scope=infer", "--name=a") == run("new", "--scope=infer", "--name=b") == 0
    assert run("revoke", "a") == 0
    assert [token.name for token in read_tokens("tokens.jsonl")] == ["b"]
    assert run("revoke", "a") == 1
    assert capsys.readouterr().err.splitlines()[-1] == "tokens.jsonl: there is no token 'a'"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["new", "--scope=infer", "--rate=5"], "the rate '5' is not of the form 100/s, 100/m or 100/h"),
        (["new", "--scope=infer", "--name=a b"], "the name 'a b' is not 1 to 64 letters"),
        (["list"], "tokens.jsonl: No such file or directory"),
        (["list", "--file=."], ".: Is a directory"),
    ],
)
def test_wrong_arguments_are_told(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 1
    assert text in capsys.readouterr().err
    assert not Path("tokens.jsonl").exists()


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "usage: nereid token" in capsys.readouterr().err


def test_scope_that_is_none_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("new", "--scope=infer,read") == 2
    assert "'read' is no scope; scopes are infer, manage, metrics" in capsys.readouterr().err
