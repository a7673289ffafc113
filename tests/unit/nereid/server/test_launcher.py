"""The end of the server's program."""

import os
import signal
import subprocess
import sys

PROGRAM = """
import threading, time
from nereid.internals import load_internals
load_internals()
from nereid.server.launcher import _stop_on_signal

class Supervisor:
    def bound_stop(self):
        pass

stop = _stop_on_signal(Supervisor())
for _ in range(30):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("waits", flush=True)
stop.until_set()
print(stop.number, flush=True)
"""


def test_a_signal_to_a_stopped_program_is_not_lost() -> None:
    """As a server that is frozen, then told to end, then resumed."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdout.readline() == "waits\n"
        try:
            os.kill(program.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, program.pid, os.WSTOPPED)
            os.kill(program.pid, signal.SIGTERM)
            os.kill(program.pid, signal.SIGCONT)
            assert program.wait(20) == 0 and program.stdout.read() == f"{int(signal.SIGTERM)}\n"
        finally:
            program.kill()
