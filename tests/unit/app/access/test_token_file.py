"""The file of tokens on disk."""

import os
import stat
from functools import partial
from pathlib import Path

import pytest

from app.access.token_file import change_tokens, read_tokens
from app.access.tokens import append, make_token, without

TOKEN = make_token("secret", name="a", scope=("infer",))
NOBODY = 65534


def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_tokens(str(path)) == (TOKEN,)


def test_a_file_is_replaced_at_once_and_a_link_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "tokens", tmp_path / "link"
    link.symlink_to(path)
    change_tokens(str(link), partial(append, token=TOKEN))
    before = path.stat().st_ino
    with path.open() as reader:
        change_tokens(str(link), partial(without, name="a"))
        assert '"a"' in reader.read()
    assert link.is_symlink() and path.stat().st_ino != before
    assert read_tokens(str(path)) == ()


def test_a_refused_change_leaves_the_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    text = path.read_text()
    with pytest.raises(ValueError, match="already"):
        change_tokens(str(path), partial(append, token=TOKEN))
    assert path.read_text() == text and os.listdir(tmp_path) == ["tokens"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    path.chmod(mode)
    with pytest.raises(ValueError, match="chmod 600"):
        read_tokens(str(path))


@pytest.mark.parametrize("mode", [0o604, 0o620])
def test_a_file_that_no_server_reads_is_not_changed(tmp_path: Path, mode: int) -> None:
    """The server would go on with the tokens that it has."""
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    path.chmod(mode)
    with pytest.raises(ValueError, match="chmod 600"):
        change_tokens(str(path), partial(without, name="a"))
    path.chmod(0o600)
    assert read_tokens(str(path)) == (TOKEN,) and os.listdir(tmp_path) == ["tokens"]


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    assert change_tokens(str(path), partial(append, token=TOKEN))
    path.chmod(0o400)
    assert not change_tokens(str(path), partial(without, name="a"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o400


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.parametrize(("owner", "mode"), [(NOBODY, 0o600), (0, 0o640)])
def test_a_file_keeps_its_owner_and_group(tmp_path: Path, owner: int, mode: int) -> None:
    """So that a server of another user still reads what root has changed."""
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    os.chown(path, owner, NOBODY)
    path.chmod(mode)
    change_tokens(str(path), partial(without, name="a"))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (owner, NOBODY, mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_file_that_would_change_hands_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    os.chown(path, NOBODY, NOBODY)

    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchown", refuse)  # as for a user who is not root
    with pytest.raises(
        ValueError, match="it belongs to user 65534 and group 65534: run this as that user or"
    ):
        change_tokens(str(path), partial(without, name="a"))
    assert '"a"' in path.read_text() and path.stat().st_uid == NOBODY
    assert os.listdir(tmp_path) == ["tokens"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of root's and reads it as another user")
@pytest.mark.parametrize(("mode", "accepted"), [(0o440, True), (0o640, True), (0o660, False), (0o644, False)])
def test_the_group_may_read_a_file_of_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, accepted: bool
) -> None:
    """As a secret lies in a Pod that has an `fsGroup`."""
    path = tmp_path / "tokens"
    change_tokens(str(path), partial(append, token=TOKEN))
    os.chown(path, 0, NOBODY)
    path.chmod(mode)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)  # the folders above are root's alone
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        assert readable("tokens") == accepted
    finally:
        os.seteuid(0)
        os.setegid(0)


def readable(path: str) -> bool:
    try:
        return read_tokens(path) == (TOKEN,)
    except ValueError:
        return False
