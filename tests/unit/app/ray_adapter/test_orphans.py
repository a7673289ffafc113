"""A process ends after its raylet, whether or not anybody collects that."""

import os
import subprocess
import sys
import time

import pytest

CODE = """
import subprocess, time
from app.ray_adapter import orphans
orphans._GRACE_S = 0.2
subprocess.Popen(["sleep", "60"])
orphans.end_with_raylet()
print("begun", flush=True)
time.sleep(30)
"""


@pytest.mark.parametrize("collected", [True, False])
def test_process_ends_after_its_raylet(collected: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as raylet:
        env = {**os.environ, "RAY_RAYLET_PID": str(raylet.pid)}
        with subprocess.Popen([sys.executable, "-c", CODE], env=env, stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"begun\n"
            time.sleep(0.3)
            assert worker.poll() is None
            raylet.kill()
            if collected:
                raylet.wait()
            assert worker.wait(20) == 1
            worker.stdout.read()  # what is below it has ended too, which would keep this open
