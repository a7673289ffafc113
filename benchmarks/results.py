"""Results as files of `benchmarks/results`: what a benchmark prints, with commit, date and machine."""

from __future__ import annotations

import argparse
import io
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "results"


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--record`."""
    parser.add_argument("--record", action="store_true", help="write a file of benchmarks/results too")


@contextmanager
def recorded(name: str, wanted: bool, folder: Path = FOLDER) -> Iterator[None]:
    """Write what is printed meanwhile to a file too, unless an exception ends it."""
    if not wanted:
        yield
        return
    kept = _Both(sys.stdout)
    head = header(name, sys.argv[1:])
    with redirect_stdout(kept):
        yield
    folder.mkdir(exist_ok=True)
    path = folder / f"{time.strftime('%Y-%m-%d')}-{name}.md"
    earlier = path.read_text() + "\n" if path.exists() else ""
    told = kept.getvalue().strip("\n")
    path.write_text(f"{earlier}{head}\n```text\n{told}\n```\n")
    print(f"wrote {path}")


class _Both(io.StringIO):
    """Keeps what is written, and writes it on."""

    def __init__(self, other: TextIO) -> None:
        super().__init__()
        self._other = other

    def write(self, text: str) -> int:
        self._other.write(text)
        return super().write(text)


def header(name: str, arguments: list[str]) -> str:
    """Return what a result is of."""
    command = shlex.join(["python", "-m", f"benchmarks.{name}", *arguments])
    lines = {
        "command": f"`{command}`",
        "commit": commit(),
        "machine": f"{processor()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "Python": f"{platform.python_version()}, {platform.python_compiler()}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    told = "\n".join(f"- {key}: {value}" for key, value in lines.items())
    return f"# {name}, {time.strftime('%Y-%m-%d %H:%M')}\n\n{told}\n"


def commit() -> str:
    """Return the commit of this tree, with "-dirty" if it differs."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def processor() -> str:
    """Return the name of this machine's processor."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()
