"""The waiting client in programs with threads."""

import subprocess
import sys

from tests.server import ROOT

PROGRAM = """
import sys, threading
from nereid_client import sync

sys.setswitchinterval(1e-6)
ready, found = threading.Barrier(32), set()
def call():
    ready.wait()
    found.add(sync._loop())
threads = [threading.Thread(target=call) for _ in range(32)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), sum(thread.name == "nereid-client" for thread in threading.enumerate()))
"""


def test_threads_that_call_first_at_once_share_one_loop() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT / "client", capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 1\n", done.stderr
