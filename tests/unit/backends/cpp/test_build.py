"""Compiling the library that C++ backends are linked with."""

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.installed import compilers
from backends.cpp import build

COMPILER = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != -o ]; do shift; done
echo compiled > "$2"
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down its arguments, a line for each call."""
    command, log = tmp_path / "c++", tmp_path / "log"
    command.write_text(COMPILER.format(log=log))
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    return log


def test_library_is_compiled_once_into_a_private_directory(log: Path, tmp_path: Path) -> None:
    first = build.built_library(root=tmp_path / "cache")
    second = build.built_library(root=tmp_path / "cache")

    assert first == second
    assert first.read_text() == "compiled\n"
    assert len(log.read_text().splitlines()) == 1
    assert stat.S_IMODE(os.stat(first.parent).st_mode) == 0o700
    assert os.listdir(first.parent) == [build.NAME]


def test_loads_at_the_same_time_compile_once(log: Path, tmp_path: Path) -> None:
    command = Path(os.environ["CXX"])
    command.write_text(COMPILER.format(log=log).replace("while", "sleep 0.2; while"))
    with ThreadPoolExecutor(4) as pool:
        libraries = set(pool.map(lambda _: build.built_library(root=tmp_path / "cache"), range(4)))
    assert len(libraries) == len(log.read_text().splitlines()) == 1


def test_what_killed_compilations_leave_is_removed(log: Path, tmp_path: Path) -> None:
    library = build.built_library(root=tmp_path / "cache")
    library.unlink()
    (library.parent / "tmpabc").mkdir()
    (library.parent / "tmpabc" / "part.o").touch()
    build.built_library(root=tmp_path / "cache")
    assert os.listdir(library.parent) == [build.NAME]


def test_other_sources_are_another_library(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.built_library(root=tmp_path / "cache")
    sources = tmp_path / "shim"
    sources.mkdir()
    (sources / "shim.cpp").write_text("int changed;")
    monkeypatch.setattr(build, "SOURCES", sources)

    assert build.built_library(root=tmp_path / "cache") != first


def test_what_the_compiler_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "c++"
    command.write_text("#!/bin/sh\necho 'no such header' >&2\nexit 1\n")
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))

    with pytest.raises(InferError, match=r"unable to compile libtritonserver\.so .*: no such header"):
        build.built_library(root=tmp_path / "cache")


def test_compiler_may_be_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: name)

    assert build.compiler() == [sys.executable, "-m", "ziglang", "c++"]


def test_missing_compiler_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(compilers, "find_spec", lambda name: None)

    with pytest.raises(InferError, match=r"install g\+\+ or clang\+\+, or the extra: .*\[cpp\]") as raised:
        build.compiler()

    assert raised.value.code is ErrorCode.UNSUPPORTED
