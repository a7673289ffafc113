"""The units of systemd, checked by systemd and by the command lines that they start."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

import click.testing
import pytest
from ray.scripts import scripts

from nereid.server.cli import parse
from tests.server import ROOT

UNIT: Final = (ROOT / "cluster/systemd/nereid.service").read_text()
NODE: Final = (ROOT / "cluster/systemd/nereid-node.service").read_text()
ANALYZE: Final = shutil.which("systemd-analyze")
EXPOSURE: Final = "20"
"""In tenths; 10 is a program that may do everything."""


def analyze(directory: Path, unit: str, *words: str) -> subprocess.CompletedProcess[str]:
    if ANALYZE is None:
        pytest.skip("systemd-analyze is not installed")
    path = directory / "nereid.service"
    path.write_text(re.sub("/opt/nereid/bin/[a-z]+", "/bin/true", unit))
    return subprocess.run([ANALYZE, *words, path], capture_output=True, text=True, check=False)


def value(name: str, unit: str = UNIT) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", unit, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("unit", [UNIT, NODE])
def test_systemd_has_nothing_to_say(tmp_path: Path, unit: str) -> None:
    done = analyze(tmp_path, unit, "verify")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("ProtectSystem=", "ProtectSytem=", "ProtectSytem"),
        ("PrivateTmp=yes", "PrivateTmp=some", "boolean value, ignoring: some"),
        ("TimeoutStopSec=60", "TimeoutStopSec=a minute", "time value, ignoring: a minute"),
    ],
)
def test_systemd_finds_a_mistake(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    assert right in UNIT
    assert said in analyze(tmp_path, UNIT.replace(right, wrong), "verify").stderr


def test_the_program_may_do_little(tmp_path: Path) -> None:
    def low(unit: str) -> bool:
        words = ("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager")
        return analyze(tmp_path, unit, *words).returncode == 0

    assert low(UNIT) and low(NODE)
    assert not low(UNIT.replace("CapabilityBoundingSet=\n", ""))


def test_the_program_is_given_time_to_end(tmp_path: Path) -> None:
    command = value("ExecStart").replace("/srv/models", str(tmp_path)).replace(" $ARGS", "")
    program, *arguments = shlex.split(command)
    assert program == "/opt/nereid/bin/nereid"
    assert int(value("TimeoutStopSec")) >= parse(arguments).server.exit_timeout_s + 30


def test_a_node_joins_again_and_leaves_no_process_behind() -> None:
    """`ray start` ends with its raylet only with --block; systemd ends what else is in its control group."""
    assert value("ExecStart", NODE) == "/opt/nereid/bin/ray start $NODE --block"
    assert value("Restart", NODE) == "always"
    assert "KillMode=" not in NODE
    start = click.testing.CliRunner().invoke(scripts.cli, ["start", "--help"]).output
    assert "--block" in start and "--address" in start
