"""Whether a process uses the extension, and what it says when it cannot."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.errors import ErrorCode, InferError
from app.core.installed.compilers import compiler
from app.native import choice, sources
from app.settings.flag.errors import SettingsError
from app.settings.load import from_args


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
    assert choice.missing() == "", "python setup.py build_ext --inplace compiles it"
    assert [choice.is_native(each) for each in choice.CHOICES] == [True, True, False]
    assert choice.described("auto") == "native"


def test_extension_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("app.native.extension")
    (tmp_path / "module.c").write_text("int changed;")
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    assert choice.described("auto").startswith("python: it was compiled from other sources than")
    choice.missing.cache_clear()
    (tmp_path / "module.c").unlink()
    assert choice.described("auto") == "native", "an installation need not have the sources"


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
