"""Finding backends by name."""

import subprocess
import sys
from pathlib import Path

import pytest

import backends
from app.core.errors import ErrorCode, InferError
from backends.base import Backend
from backends.identity_impl import IdentityBackend

CUSTOM = """
from backends.base import Backend
from .helper import ANSWER

class TritonBackend(Backend):
    answer = ANSWER

    def instance_execute(self, instance, requests):
        pass
"""


@pytest.fixture
def custom(tmp_path: Path) -> Path:
    folder = tmp_path / "identity"
    folder.mkdir()
    (folder / "backend.py").write_text(CUSTOM)
    (folder / "helper.py").write_text("ANSWER = 42\n")
    return tmp_path


def test_built_in_backends_are_found() -> None:
    assert backends.find_backend("identity") is IdentityBackend
    for name in ("repeat", "square", "python"):
        assert issubclass(backends.find_backend(name), Backend)


def test_backend_directory_comes_first_and_may_import_its_neighbours(custom: Path) -> None:
    found = backends.find_backend("identity", custom)
    assert found.answer == 42  # type: ignore[attr-defined]
    assert backends.find_backend("identity", custom) is found


def test_backend_directory_without_the_name_is_passed_over(custom: Path) -> None:
    assert issubclass(backends.find_backend("square", custom), Backend)


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc", "..", "", "a\\b", "a\0b"])
def test_names_cannot_leave_the_backend_directory(name: str, custom: Path) -> None:
    with pytest.raises(InferError) as caught:
        backends.find_backend(name, custom)
    assert caught.value.message == f"backend library name '{name}' escapes backend directory"


def test_unknown_backend(custom: Path) -> None:
    with pytest.raises(InferError) as caught:
        backends.find_backend("unknown", custom)
    assert caught.value.code is ErrorCode.INVALID_ARG
    assert caught.value.message == (
        "unable to find backend library for backend 'unknown', try specifying runtime on the"
        " model configuration."
    )


def test_missing_framework_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "backends.torch_impl", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InferError) as caught:
        backends.find_backend("pytorch")
    assert caught.value.message == (
        "backend 'pytorch' needs PyTorch, which is not installed; install the extra: pip"
        " install 'nereid[pytorch]'"
    )


def test_directory_backend_that_fails_to_import(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "backend.py").write_text("raise RuntimeError('boom')\n")
    with pytest.raises(InferError, match="unable to load backend library for backend 'broken': boom"):
        backends.find_backend("broken", tmp_path)


def test_directory_backend_of_the_wrong_kind(tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "backend.py").write_text("TritonBackend = 3\n")
    with pytest.raises(InferError, match="is not a subclass of"):
        backends.find_backend("odd", tmp_path)


def test_importing_the_registry_imports_no_framework() -> None:
    code = "import sys, backends; sys.exit(bool({'torch', 'onnxruntime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
