"""The version of a release: every file that names it names the same."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.server import ROOT


def project(folder: Path) -> dict[str, Any]:
    described: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return described


VERSION = project(ROOT)["version"]


def test_client_library_has_the_servers_version() -> None:
    assert project(ROOT / "client")["version"] == VERSION


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("cluster/helm/nereid/Chart.yaml", r"(?:^version|appVersion): (.*)"),
        ("cluster/kubernetes/rayservice.yaml", r"nereid:(\d[.\d]*)"),
        ("cluster/kubernetes/servingruntime.yaml", r"nereid:(\d[.\d]*)"),
        ("cluster/docker/Dockerfile", r"nereid:(\d[.\d]*)"),
        ("cluster/README.md", r"nereid:(\d[.\d]*)"),
    ],
)
def test_file_names_the_version(file: str, says: str) -> None:
    assert set(re.findall(says, (ROOT / file).read_text(), re.MULTILINE)) == {VERSION}


def test_changelog_has_a_section_of_the_version() -> None:
    """It is dated when it is released, and until then says so; no other is above it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[([^]]+)\](.*)", text, re.MULTILINE)
    named = dict(sections)
    assert re.fullmatch(r", not dated yet| - \d{4}-\d\d-\d\d", named[VERSION])
    unreleased = "not dated yet" in named[VERSION]
    page = (ROOT / "docs/operate/versions.md").read_text()
    assert ("No version has been released yet" in text) == unreleased
    assert ("No version has been released yet" in page) == unreleased
    assert next(name for name, _ in sections if name != "Unreleased") == VERSION


def test_wheels_of_every_python_are_what_the_page_lists() -> None:
    page = (ROOT / "docs/operate/versions.md").read_text()
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(project(ROOT)["classifiers"]))
    assert f"| Python | {', '.join(classified)} |" in page
