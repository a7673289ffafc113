"""Starts of Ray of which a process ends; the program is a small one, with a stand-in for `ray.init`."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.ray_adapter.local.attempts import Attempt
from tests.server import ROOT

PROGRAM = """
import sys, time
from ray._private import services
from app.ray_adapter.local.attempts import Attempt, watched_start

print("attempt", Attempt.current().number, flush=True)
with watched_start():
    services.ConsolePopen([sys.argv[1], "--log_dir=" + sys.argv[2]])
    time.sleep(60)  # as `ray.init`, which waits for it
"""


def test_attempts_are_limited_in_number() -> None:
    first = Attempt()
    second = first.next(100.0)
    assert second == Attempt(2, 160.0)
    third = second.next(110.0)
    assert third == Attempt(3, 160.0)
    assert third.next(120.0) is None


def test_attempts_are_limited_in_time_from_the_first_failure() -> None:
    second = Attempt().next(100.0)
    assert second is not None and second.next(160.0) is None


def test_attempt_is_passed_on_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Attempt.current() == Attempt()
    monkeypatch.setenv("NEREID_RAY_START", "2@160.5")
    assert Attempt.current() == Attempt(2, 160.5)


def test_start_is_repeated_and_says_why_it_fails(tmp_path: Path) -> None:
    raylet = tmp_path / "raylet"
    raylet.write_text("#!/bin/sh\nexit 7\n")
    raylet.chmod(0o755)
    (tmp_path / "raylet.out").write_text("earlier\n" * 9 + "one Ray agent failed\n")
    started = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(raylet), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - started < 50
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["attempt 1", "attempt 2", "attempt 3"]
    assert ended.stderr.count("starting again") == 2
    reason = "error: creating server: Unavailable - cannot start Ray: Ray's raylet has ended with status 7"
    assert reason in ended.stderr
    assert ended.stderr.splitlines()[-1].strip() == "one Ray agent failed"
