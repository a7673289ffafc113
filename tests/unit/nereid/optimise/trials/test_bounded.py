"""Programs with limits: what takes too much is ended, named, and leaves nothing behind."""

import os
import sys
from pathlib import Path

import pytest

from nereid.optimise.trials.bounded import Ended, Limits, run
from tests.waiting import block_until

PATIENT = 60.0


def ended(path: Path, code: str, seconds: float = PATIENT, memory: int = 1 << 30) -> Ended:
    return run([sys.executable, "-c", code], Limits(seconds, memory), path / "log")


def test_a_program_that_ends_by_itself(tmp_path: Path) -> None:
    found = ended(tmp_path, "print('built')")
    assert not found.why and (tmp_path / "log").read_text() == "built\n"


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    found = ended(tmp_path, "import time; time.sleep(1000)", seconds=0.5)
    assert found.why == "ended at its limit of 0.5 s"


@pytest.mark.parametrize(
    "code",
    [
        "held = bytearray(20 << 30)",
        "held = [bytearray(16 << 20) for _ in range(1280)]",
        "import mmap, time; m = mmap.mmap(-1, 2 << 30); m.write(bytes(1 << 29)); time.sleep(1000)",
    ],
)
def test_one_that_takes_memory_is_ended(tmp_path: Path, code: str) -> None:
    found = ended(tmp_path, code, memory=256 << 20)
    assert "its limit" in found.why and "memory" in found.why
    assert found.peak < 1 << 30


def test_the_memory_of_its_children_counts(tmp_path: Path) -> None:
    child = "import mmap, time; m = mmap.mmap(-1, 1 << 29)"
    child += "\nfor _ in range(256): m.write(bytes(1 << 20))\ntime.sleep(1000)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert ended(tmp_path, code, memory=128 << 20).why == "ended at its limit of 0.125 GiB of memory"


def test_nothing_of_its_group_is_left(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(1000)"
    )
    ended(tmp_path, code, seconds=2.0)
    pid = int((tmp_path / "log").read_text())
    stat = Path(f"/proc/{pid}/stat")
    block_until(lambda: not stat.exists() or ") Z " in stat.read_text(), "its child lives on")


def test_a_crash_is_named(tmp_path: Path) -> None:
    found = ended(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert found.why == "crashed: SIGSEGV"
    assert ended(tmp_path, "raise ValueError('no such layer')").why == "failed: ValueError: no such layer"


def test_an_interrupt_ends_the_program(tmp_path: Path) -> None:
    seen = []

    def stop() -> None:
        seen.append(int(next(name for name in os.listdir("/proc") if name == str(os.getpid()))))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", "import time; time.sleep(1000)"], Limits(), tmp_path / "log", look=stop)
    assert seen
