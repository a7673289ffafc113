"""Titles of processes, as listings show them."""

import subprocess
import sys

import pytest

from tests.unit.test_imports import ROOT

TITLE = """
import sys
from pathlib import Path
from app.core.system.process_title import set_title

set_title(sys.argv[1])
for name in ("cmdline", "comm"):
    print(Path("/proc/self", name).read_bytes().hex())
print(len(sys.argv[2]))
"""


@pytest.mark.parametrize("title", ["nereid: model m", "nereid: model " + "é" * 300, "x"])
def test_a_title_is_written_over_the_arguments(title: str) -> None:
    command = [sys.executable, "-c", TITLE, title, " " * 40]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    shown, name, padding = done.stdout.split()
    room = bytes.fromhex(shown)
    assert room.rstrip(b"\0") == title.encode()[: len(room) - 1] and room[-1:] == b"\0"
    assert bytes.fromhex(name) == title.encode()[:15] + b"\n" and padding == "40", (
        "the program's own arguments stay"
    )


def test_a_title_of_any_text() -> None:
    command = [
        sys.executable,
        "-c",
        "from app.core.system.process_title import set_title; set_title('m \\ud83d')",
    ]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)
