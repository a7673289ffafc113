"""Directories of this user's own."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from app.core.private_files import private_root


def test_root_directory_belongs_to_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    root = tmp_path / f"nereid-{os.getuid()}"
    assert private_root() == str(root) and stat.S_IMODE(root.stat().st_mode) == 0o700
    assert private_root() == str(root)
    root.chmod(0o777)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        private_root()
    root.rmdir()
    root.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="must belong to this user alone"):
        private_root()


def test_root_directory_has_the_given_parent(tmp_path: Path) -> None:
    assert private_root(str(tmp_path)) == str(tmp_path / f"nereid-{os.getuid()}")
