"""The examples of README.md and of pages, as they stand, against the example models."""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.contract.conftest import Addresses
from tests.server import ROOT

PAGES = ("README.md", "docs/use/examples.md", "docs/models/sequences.md")


def examples(page: str) -> Iterator[tuple[str, str, str]]:
    """Each example: its language, its code and what it prints, which follows as an indented block."""
    text = (ROOT / page).read_text()
    for code, printed in re.findall(r"```python\n(.*?)```\n\n((?:    [^\n]*\n)+)", text, re.DOTALL):
        yield "python", code, textwrap.dedent(printed)
    for code, printed in re.findall(r"^    (curl .*?)\n\n(.*?)(?=\n\S)", text, re.DOTALL | re.MULTILINE):
        yield "sh", textwrap.dedent(code), textwrap.dedent(printed)


def of_language(wanted: str, page: str) -> list[tuple[str, str]]:
    return [(code, printed) for language, code, printed in examples(page) if language == wanted]


SHELL = [example for page in PAGES for example in of_language("sh", page)]
PYTHON = {page: of_language("python", page) for page in PAGES}


def test_examples_are_found() -> None:
    assert (len(SHELL), [len(found) for found in PYTHON.values()]) == (5, [1, 3, 1])


@pytest.mark.parametrize("page", PAGES)
def test_no_example_lacks_what_it_prints(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.count("```python") == len(PYTHON[page])
    assert len(re.findall(r"^    curl ", text, re.MULTILINE)) == len(of_language("sh", page))


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


@pytest.mark.parametrize("page", PAGES)
def test_python_prints_what_is_written(server: Addresses, page: str) -> None:
    """In one program, because a later example of a page uses the names of an earlier one."""
    program = "\nprint('---')\n".join(moved(code, server) for code, _ in PYTHON[page])
    printed = run([sys.executable, "-c", program]).split("---\n")
    written = [expected for _, expected in PYTHON[page]]
    assert all(same(*pair) for pair in zip(printed, written, strict=True)), printed
