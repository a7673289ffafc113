"""Commands whose reader has gone away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nereid_client.tools.output import until_read_enough

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from nereid_client.tools.output import until_read_enough
with until_read_enough():
    try:
        for number in range(100_000):
            print(number)
    except OSError as error:
        print(error, file=sys.stderr)  # as commands do for files
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_has_gone_away_is_no_failure_of_files(unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client"), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=writing, stderr=subprocess.PIPE, env=environment
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_all_is_printed_for_who_reads_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, env=environment, check=True)
    assert done.stdout.split()[-1] == b"99999"


def test_output_of_a_test_stays_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with until_read_enough():
        print("here")
    assert capsys.readouterr().out == "here\n"
