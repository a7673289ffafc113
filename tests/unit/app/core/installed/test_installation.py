"""The hint that names an extra, and the version."""

import sys
from pathlib import Path

import pytest

from app.core.installed import installation
from app.core.installed.installation import compile_command, install_command, server_version
from tests.server import ROOT


def test_checkout_installs_itself_with_its_constraints() -> None:
    text = f"{sys.executable} -m pip install -c {ROOT}/constraints.txt -e '{ROOT}[otel]'"
    assert install_command("otel") == text


def test_wheel_names_the_distribution(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert install_command("s3") == f"{sys.executable} -m pip install 'nereid-server[s3]'"


def test_version_of_a_checkout_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "DISTRIBUTION", "no-such-distribution")
    assert server_version() == "unknown"


def test_no_text_names_a_distribution_by_itself() -> None:
    sources = [
        path for tree in ("app", "backends", "deployments", "nereid") for path in (ROOT / tree).rglob("*.py")
    ]
    guilty = [path for path in sources if "pip install" in path.read_text()]
    assert guilty == [ROOT / "app/core/installed/installation.py"]


def test_extension_is_compiled_again_by_the_way_it_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert compile_command() == f"cd {ROOT} && {sys.executable} setup.py build_ext --inplace"
    monkeypatch.setattr(installation, "_ROOT", tmp_path)
    assert compile_command().endswith("--force-reinstall --no-deps --no-cache-dir nereid-server")
