"""Processes as /proc shows them, and the end of a tree of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.system import processes
from app.core.system.processes import Process, own_processes, own_tree, processor_seconds
from tests.waiting import block_until

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)", "--mark=7"]


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(SLEEP) as started:
        yield started
        started.kill()


def found(sleeper: "subprocess.Popen[bytes]") -> Process:
    process = processes.process(sleeper.pid)
    assert process is not None
    return process


def test_running_process_has_no_fault(sleeper: "subprocess.Popen[bytes]") -> None:
    assert found(sleeper).fault == ""


def test_stopped_process_has_a_fault_until_it_continues(sleeper: "subprocess.Popen[bytes]") -> None:
    process = found(sleeper)
    sleeper.send_signal(signal.SIGSTOP)
    block_until(lambda: process.fault == "is stopped")
    sleeper.send_signal(signal.SIGCONT)
    block_until(lambda: process.fault == "")


def test_ended_process_has_a_fault_before_and_after_it_is_reaped(sleeper: "subprocess.Popen[bytes]") -> None:
    process = found(sleeper)
    process.kill()
    block_until(lambda: process.fault == "has ended")
    sleeper.wait()
    assert process.fault == "has ended"


def test_processor_time_is_that_of_a_process_and_of_its_ended_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.4: pass"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        try:
            assert parent.pid in own_processes()
            block_until(lambda: processor_seconds([parent.pid]) >= 0.4)
            assert {os.getpid(), parent.pid} <= own_processes() & own_tree()
        finally:
            parent.kill()
    assert processor_seconds([parent.pid]) == 0, "it is gone"


def test_later_process_with_the_same_id_is_another() -> None:
    own = processes.process(os.getpid())
    assert own is not None and own.fault == ""
    earlier = Process(own.pid, own.started - 1)
    assert earlier.fault == "has ended"
    earlier.kill()  # or this test would end here


UNREADABLE = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"\\xff\\xfe", 0, 0, 0)  # PR_SET_NAME
print("named", flush=True)
time.sleep(60)
"""


def test_name_that_is_no_text_hides_no_process() -> None:
    """Anybody may give a process any name; who looks at all of them must not fail for it."""
    with subprocess.Popen([sys.executable, "-c", UNREADABLE], stdout=subprocess.PIPE) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == b"named\n"
            assert started.pid in [each.pid for each in processes.descendants(os.getpid())]
        finally:
            started.kill()


def test_absent_process_is_none() -> None:
    assert processes.process(1 << 30) is None
    assert processes.arguments(1 << 30) == []


def test_process_is_found_by_name_and_argument(sleeper: "subprocess.Popen[bytes]") -> None:
    block_until(lambda: "--mark=7" in processes.arguments(sleeper.pid))
    name = Path(f"/proc/{sleeper.pid}/comm").read_text().strip()
    assert processes.find(name, "--mark=7") == found(sleeper)
    assert processes.find(name, "--mark=8") is None
    assert processes.find("nonesuch", "--mark=7") is None


ORPHANS = """
import os, subprocess, sys, time
from app.core.system import processes

processes.adopt_orphans()
child = subprocess.Popen([sys.executable, "-c", '''
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL).pid)
'''], stdout=subprocess.PIPE, text=True)
orphan = int(child.communicate()[0])
deadline = time.monotonic() + 10
while [each.pid for each in processes.descendants(os.getpid())] != [orphan] and time.monotonic() < deadline:
    time.sleep(0.01)
print([each.pid for each in processes.descendants(os.getpid())] == [orphan])
"""


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_orphans_are_adopted_and_killed() -> None:
    kill = "processes.kill_descendants()\nprint(processes.process(orphan))\n"
    assert run(ORPHANS + kill) == ["True", "None"]


def test_adopted_process_that_has_ended_is_let_go() -> None:
    reap = """
os.kill(orphan, 9)
while processes.process(orphan).fault != "has ended":
    time.sleep(0.01)
processes.reap_adopted(frozenset(), processes.descendants(os.getpid()))
print(processes.process(orphan))
"""
    assert run(ORPHANS + reap) == ["True", "None"]


def test_ended_child_of_the_programs_own_keeps_its_status() -> None:
    code = """
import os, subprocess, sys, time
from app.core.system import processes

child = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
while processes.process(child.pid).fault != "has ended":
    time.sleep(0.01)
processes.reap_adopted(frozenset([child.pid]), processes.descendants(os.getpid()))
print(child.wait())
"""
    assert run(code) == ["7"]
