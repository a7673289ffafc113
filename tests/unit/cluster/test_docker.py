"""The Dockerfile: what its linter says, and what it copies."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.server import ROOT

DOCKERFILE: Final = ROOT / "cluster/docker/Dockerfile"
HADOLINT: Final = shutil.which("hadolint", path=Path(sys.executable).parent)


def lint(text: str) -> str:
    if HADOLINT is None:
        pytest.skip("hadolint is not installed")
    command = [HADOLINT, "--no-color", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


def test_linter_has_nothing_to_say() -> None:
    assert lint(DOCKERFILE.read_text()) == ""


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("USER 1000:1000", "USER root", "DL3002"),
        ('ENTRYPOINT ["tini", "--", "start"]', "ENTRYPOINT tini -- start", "DL3025"),
        ("--no-install-recommends ", "", "DL3015"),
        ("HEALTHCHECK", "HEALTCHECK", "unexpected 'H'"),
    ],
)
def test_linter_finds_a_mistake(right: str, wrong: str, rule: str) -> None:
    text = DOCKERFILE.read_text()
    assert right in text
    assert rule in lint(text.replace(right, wrong))


def test_image_is_made_of_a_release_and_nothing_else() -> None:
    copied = set(re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE))
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert copied == {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert copied == {"cluster/docker/start.sh", "constraints.txt", "dist/*.whl"}


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ((), "nereid"),
        (("--model-repository=/models",), "nereid --model-repository=/models"),
        (("tritonserver", "--model-repository=/models"), "nereid tritonserver --model-repository=/models"),
        (("env", "list"), "nereid env list"),
        (("sh", "-c", "echo tritonserver 'a  b'"), "tritonserver a  b"),
        (("/bin/echo", "x y"), "x y"),
    ],
)
def test_image_runs_shells_and_the_commands_of_nereid(
    tmp_path: Path, words: tuple[str, ...], run: str
) -> None:
    """Compose files for Triton's image run `tritonserver`, or a shell that does."""
    stand_in = tmp_path / "nereid"
    stand_in.write_text('#!/bin/sh\necho nereid "$@"\n')
    stand_in.chmod(0o755)
    start = DOCKERFILE.parent / "start.sh"
    done = subprocess.run(
        ["sh", start, *words],
        env={"PATH": f"{tmp_path}:/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == run


def test_image_says_which_extras_there_are() -> None:
    """pip installs without an extra that it does not know."""
    known = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    wanted = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE.read_text())
    assert len(wanted) == 2 and {extra for line in wanted for extra in line.split(",")} <= known
