"""One run of a model's process, as the replica sees it."""

import os
import signal
import socket
import subprocess

from deployments.model_process.run import Run
from deployments.model_process.start import Started


def test_a_process_is_killed_before_it_has_a_group_of_its_own() -> None:
    """Who has asked for it knows its id before it does anything."""
    reading, writing = os.pipe()
    lifeline, status = socket.socketpair()
    with subprocess.Popen(["sleep", "60"]) as process, lifeline, status:
        pidfd = os.pidfd_open(process.pid)
        run = Run(Started(process.pid, pidfd, lifeline, status, reading), "m")
        run.kill()
        assert process.wait(60) == -signal.SIGKILL
    os.close(writing)
    os.close(pidfd)
    run.close()
