"""The file of tokens is read again when it changes."""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from app.access import token_watch
from app.access.token_file import change_tokens
from app.access.token_watch import TokenWatch
from app.access.tokens import append, make_token, without
from tests.waiting import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "tokens"
    add(found, "a")
    return found


def add(path: Path, name: str) -> None:
    token = make_token(f"secret-{name}", name=name, scope=("infer",))
    change_tokens(str(path), partial(append, token=token))


def names(watch: TokenWatch) -> list[str] | None:
    tokens = watch.changed()
    return None if tokens is None else [token.name for token in tokens]


def test_a_file_is_read_when_it_was_replaced_or_written(path: Path) -> None:
    watch = TokenWatch(str(path))
    assert watch.grants.find("secret-a") is not None
    assert names(watch) is None
    add(path, "b")
    assert names(watch) == ["a", "b"] and names(watch) is None
    with path.open("a") as file:
        file.write("# written in place\n")
    assert names(watch) == ["a", "b"]
    change_tokens(str(path), partial(without, name="a"))
    assert names(watch) == ["b"]


def test_a_broken_file_is_told_once_and_read_when_it_is_mended(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = TokenWatch(str(path))
    text = path.read_text()
    path.write_text(text + "{\n")
    assert [names(watch), names(watch)] == [None, None]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"the tokens of '{path}' stay as they were: line 2: " in caplog.text
    path.chmod(0o644)
    assert names(watch) is None and "chmod 600" in caplog.records[-1].getMessage()
    path.write_text(text)
    path.chmod(0o600)
    assert names(watch) == ["a"] and len(caplog.records) == 2


def test_a_missing_file_is_told_once_and_read_when_it_returns(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = TokenWatch(str(path))
    os.rename(path, path.with_suffix(".away"))
    assert [names(watch), names(watch)] == [None, None]
    assert len(caplog.records) == 1 and "No such file or directory" in caplog.text
    os.rename(path.with_suffix(".away"), path)
    assert names(watch) == ["a"]


def test_a_server_does_not_start_with_a_broken_file(path: Path) -> None:
    path.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        TokenWatch(str(path))


async def test_tokens_come_into_force_while_it_follows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_watch, "_POLL_S", 0.001)
    watch = TokenWatch(str(path))
    following = asyncio.create_task(watch.follow())
    grant = watch.grants.find("secret-a")
    assert grant is not None
    add(path, "b")
    change_tokens(str(path), partial(without, name="a"))
    await until(lambda: watch.grants.find("secret-b") is not None and watch.grants.find("secret-a") is None)
    assert grant.revoked
    following.cancel()
