"""Whether a process uses the extension, and what it says when it cannot."""

import sys
import sysconfig
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from app.core.compilers import compiler
from app.core.errors import ErrorCode, InferError
from app.native import choice
from app.settings.errors import SettingsError
from app.settings.load import from_args
from tests.server import ROOT


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    choice.missing.cache_clear()
    yield
    choice.missing.cache_clear()


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extension."""
    monkeypatch.setitem(sys.modules, "app.native.extension", None)
    monkeypatch.delattr("app.native.extension", raising=False)


@pytest.mark.skipif(compiler("cc") is None, reason="no C compiler")
def test_extension_is_compiled_from_the_present_sources() -> None:
    assert choice.missing() == ""
    from app.native.extension import SOURCES

    folder = ROOT / "app" / "native"
    files = [*sorted(folder.glob("*.c")), *sorted(folder.glob("*.h"))]
    digest = blake2b(b"".join(path.read_bytes() for path in files), digest_size=12)
    assert digest.hexdigest() == SOURCES, "compile it: python setup.py build_ext --inplace"
    assert [choice.is_native(each) for each in choice.CHOICES] == [True, True, False]
    assert choice.described("auto") == "native"


def test_without_the_extension_python_is_the_default(lacking: None) -> None:
    assert not choice.is_native("auto") and not choice.is_native("python")
    assert choice.described("auto").startswith("python: it was not compiled at the installation; install gcc")
    assert choice.described("python") == "python (--data-plane)"


def test_native_without_the_extension_names_the_remedy(lacking: None, tmp_path: Path) -> None:
    with pytest.raises(InferError, match=r"gcc or clang, .* then run: .* build_ext --inplace") as caught:
        choice.is_native("native")
    assert caught.value.code is ErrorCode.UNSUPPORTED
    with pytest.raises(SettingsError, match="--data-plane=native needs the compiled data plane: it was not"):
        from_args({"model_repository": str(tmp_path), "data_plane": "native"})


def test_missing_headers_of_python_are_named(lacking: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    assert f"the headers of Python {sys.version_info[0]}.{sys.version_info[1]}" in choice.missing()
