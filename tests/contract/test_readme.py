"""The examples of README.md, as they stand, against a server with the example models."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.contract.conftest import Addresses
from tests.server import ROOT

README = (ROOT / "README.md").read_text().partition("## Your own models")[0]


def examples() -> Iterator[tuple[str, str, str]]:
    """Each example: its language, its code and what it prints, which follows as an indented block."""
    for code, printed in re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", README, re.DOTALL):
        yield "python", code, textwrap.dedent(printed)
    for code, printed in re.findall(r"^    (curl .*?)\n\n(.*?)(?=\n\S)", README, re.DOTALL | re.MULTILINE):
        yield "sh", textwrap.dedent(code), textwrap.dedent(printed)


SHELL = [(code, printed) for language, code, printed in examples() if language == "sh"]
PYTHON = [(code, printed) for language, code, printed in examples() if language == "python"]


def test_examples_are_found() -> None:
    assert (len(SHELL), len(PYTHON)) == (5, 4)


def moved(code: str, server: Addresses) -> str:
    """The code with the server's ports instead of the default ones."""
    for default, address in (("8000", server.http), ("8001", server.grpc)):
        code = code.replace(f"localhost:{default}", f"localhost:{address.rpartition(':')[2]}")
    return code


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(printed: str, written: str) -> bool:
    """Whether two texts are equal but for the last digits of fractions, in which processors differ."""
    fraction = re.compile(r"\d+\.\d{3,}")
    if fraction.sub("#", printed.strip()) != fraction.sub("#", written.strip()):
        return False
    both = ([float(each) for each in fraction.findall(text)] for text in (printed, written))
    return all(abs(one - other) < 1e-5 for one, other in zip(*both, strict=True))


def test_texts_that_differ_are_found() -> None:
    assert same("[b'0.953978:967:espresso']\n", "[b'0.953979:967:espresso']")
    for other in ("[b'0.953879:967:espresso']", "[b'0.953979:968:espresso']", "[b'0.953979:967']"):
        assert not same("[b'0.953979:967:espresso']", other)


@pytest.mark.parametrize(("code", "expected"), SHELL)
def test_curl_prints_what_is_written(server: Addresses, code: str, expected: str) -> None:
    printed = run(["sh", "-c", moved(code, server)])
    assert same(printed, expected), printed


def test_python_prints_what_is_written(server: Addresses) -> None:
    """In one program, because a later example uses the names of an earlier one."""
    program = "\nprint('---')\n".join(moved(code, server) for code, _ in PYTHON)
    printed = run([sys.executable, "-c", program]).split("---\n")
    assert all(same(text, expected) for text, (_, expected) in zip(printed, PYTHON, strict=True)), printed
