"""The processes of a server, as they come, change and go."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.cost.process_tree import ProcessTree
from app.cost.samples import ProcessMeter

_SPIN = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end: pass
    print("done", flush=True)
"""


@contextmanager
def child(program: str = _SPIN, title: str = "child") -> Iterator[subprocess.Popen[str]]:
    """Start a process that computes as long as it is told."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program, title], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def spin(process: subprocess.Popen[str], seconds: float) -> None:
    assert process.stdin and process.stdout
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_what_is_below_is_found_and_measured() -> None:
    tree, meter = ProcessTree(os.getpid(), "tests"), ProcessMeter()
    with child() as one, child(title="nereid: model a:1") as other:
        first = tree.look()
        assert {pid for pid, _ in first} >= {os.getpid(), one.pid, other.pid}
        assert os.getppid() not in {pid for pid, _ in first}
        meter.take(first)
        spin(one, 0.3)
        used = meter.take(tree.look())
    assert used["tests"] >= 29
    assert one.pid not in {pid for pid, _ in tree.look()}


def test_the_last_time_of_a_process_that_was_killed_counts() -> None:
    tree, meter = ProcessTree(os.getpid(), "tests"), ProcessMeter()
    with child() as one:
        spin(one, 0.2)
        meter.take(tree.look())
        spin(one, 0.3)
    found = meter.take(tree.look())
    assert found["tests"] >= 29


_TITLED = """
import sys
sys.path[:0] = sys.argv[1].split(':')
from app.core.system.process_title import set_title
set_title(sys.argv[2])
print("titled", flush=True)
sys.stdin.read()
"""


def test_a_process_is_of_the_model_that_its_title_names() -> None:
    tree = ProcessTree(os.getpid(), "tests")
    places = ":".join(path for path in sys.path if path)
    arguments = [sys.executable, "-c", _TITLED, places]
    pipe = subprocess.PIPE
    with subprocess.Popen([*arguments, "nereid: model a:1"], stdin=pipe, stdout=pipe) as one:
        assert one.stdout
        assert one.stdout.readline() == b"titled\n"
        groups = {pid: sample.group for (pid, _), sample in tree.look().items()}
        one.kill()
    assert (groups[os.getpid()], groups[one.pid]) == ("tests", "model a:1")
