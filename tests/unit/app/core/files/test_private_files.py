"""Directories of this user's own."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from app.core.files import private_files
from app.core.files.private_files import (
    SOCKET_ROOT_BYTES,
    full_disk,
    private_root,
    require_home,
    short_path,
    socket_root,
    state_directory,
)


def test_root_directory_belongs_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = tmp_path / f"nereid-{os.getuid()}"
    assert private_root() == root and stat.S_IMODE(root.stat().st_mode) == 0o700
    assert private_root() == root
    root.chmod(0o777)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        private_root()
    root.rmdir()
    root.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        private_root()


def test_root_directory_has_the_given_parent(tmp_path: Path) -> None:
    assert private_root(str(tmp_path)) == tmp_path / f"nereid-{os.getuid()}"


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a short path, which takes the place of /tmp."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 80)))
    (tmp_path / ("x" * 80)).mkdir()
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as directory:
        monkeypatch.setattr(private_files, "_TEMPORARY", directory)
        yield Path(directory)


def test_sockets_have_a_short_place(short: Path, tmp_path: Path) -> None:
    assert socket_root() == str(short / f"nereid-{os.getuid()}")
    assert len(socket_root()) <= SOCKET_ROOT_BYTES < len(str(private_root()))
    assert socket_root(str(short)) == str(private_root(str(short))), "one that is short enough is used"


def test_a_long_directory_has_a_short_path(short: Path, tmp_path: Path) -> None:
    directory = Path(private_root(), "ray")
    directory.mkdir()
    path = short_path(str(directory))
    assert path.startswith(socket_root()) and Path(path).samefile(directory)
    assert short_path(str(directory)) == path
    assert short_path(f"{short}/x", str(short)) == f"{short}/x"
    directory.rmdir()
    (other := Path(private_root(), "other")).mkdir()
    assert short_path(str(other)) != path
    assert not os.path.lexists(path), "the link of a job that is over is removed"


def test_no_short_place_is_an_error(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "SOCKET_ROOT_BYTES", 5)
    with pytest.raises(OSError, match=r"is too long for sockets \(at most 5 bytes\)"):
        socket_root()


def test_a_user_without_a_home_gets_a_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", "/home/x")
    require_home()
    assert os.environ["HOME"] == "/home/x"
    monkeypatch.delenv("HOME")
    require_home()
    assert "HOME" not in os.environ, "the table of users has one"

    def unknown(uid: int) -> NoReturn:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.delenv("USER", raising=False)
    require_home()
    assert os.environ.pop("USER") == str(os.getuid())
    assert os.environ["HOME"] == str(tmp_path / f"nereid-{os.getuid()}" / "home")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    assert not full_disk(str(tmp_path))
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=9", "none", str(tmp_path)]
    if os.geteuid() or subprocess.call(mount):
        pytest.skip("no right to mount")
    text = f" on the disk of '{tmp_path}', the directory for temporary files (TMPDIR)"
    try:
        assert not full_disk(str(tmp_path))
        (tmp_path / "file").write_bytes(bytes(3 << 19))
        assert full_disk(str(tmp_path)) == f"no space is left{text}"
        (tmp_path / "file").write_bytes(b"")
        for number in range(7):
            (tmp_path / str(number)).touch()
        assert full_disk(str(tmp_path)) == f"no files can be made{text}"
    finally:
        subprocess.check_call(["umount", tmp_path])


def test_state_lies_in_the_directory_that_is_given_or_systemds_or_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    assert state_directory("kept") == str(tmp_path / "home" / "nereid" / "kept")
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path / 'service'}:/elsewhere")
    assert state_directory("kept") == str(tmp_path / "service" / "kept")
    found = tmp_path / "given" / "kept"
    assert state_directory("kept", str(tmp_path / "given")) == str(found)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_state_without_a_home_lies_beside_what_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert state_directory("kept") == str(tmp_path / f"nereid-{os.getuid()}" / "state" / "kept")
    with pytest.raises(OSError, match="Not a directory"):
        state_directory("kept", str(tmp_path / "home"))
