"""Which compilers are found."""

import sys
from pathlib import Path

import pytest

from app.core.installed import compilers


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, on a machine without the package ziglang."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)
    return tmp_path


def command(path: Path, text: str = "exit 0") -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_system_compiler_comes_before_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clang, standard = command(folder / "clang"), command(folder / "cc")
    assert compilers.compiler("cc") == [standard]
    monkeypatch.setenv("CC", "clang")
    assert compilers.compiler("cc") == [clang]
    assert compilers.compiler("c++") is None


def test_zig_that_pip_hides_is_found_while_installing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = command(folder / "python", '[ "$*" = "-I -m ziglang version" ]')
    monkeypatch.setattr(sys, "executable", python)
    assert compilers.compiler_while_installing() == [python, "-I", "-m", "ziglang", "cc"]
    command(folder / "python", "exit 1")
    assert compilers.compiler_while_installing() is None
