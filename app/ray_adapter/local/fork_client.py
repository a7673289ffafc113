"""Starts a worker of Ray by the fork server: `python -I -S fork_client.py SOCKET COMMAND...`.

The raylet runs it instead of the worker's own command. That is run as it is for a worker with a runtime
environment, which is another program, and for every worker without a fork server.
"""

import os
import resource
import signal
import socket
import sys

_SCRIPT = "default_worker.py"
_LANGUAGE = "--language="
_PATIENCE_S = 30.0
"""Longer than the fork server imports on a busy machine. Ray gives a worker 60 s."""
_OOM_SCORE = "/proc/self/oom_score_adj"
_OTHER = ("--serialized-runtime-env-context", "--worker-type")
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def main(path: str, command: list[str]) -> None:
    """Have the worker of a command forked, or become it."""
    if not (_is_plain(command) and _is_forked(path, command[2:])):
        os.execv(command[0], command)


def _is_plain(command: list[str]) -> bool:
    """Return whether a command is that of a worker without anything special.

    In Ray 2.60: python, the script that sets up a runtime environment, that of the worker, options.
    """
    return (
        len(command) > 3
        and os.path.basename(command[2]) == _SCRIPT
        and _LANGUAGE + "PYTHON" in command
        and not any(word.startswith(_OTHER) for word in command)
    )


def _is_forked(path: str, arguments: list[str]) -> bool:
    """Ask the fork server; return whether there is a worker now."""
    taken = [word for word in arguments if not word.startswith(_LANGUAGE)]  # the other script's
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    try:
        words = [os.getcwd(), *_inherited(), str(len(taken)), *taken, *environment]
        request = os.fsencode("\0".join(words))
        with socket.socket(socket.AF_UNIX) as server:
            server.settimeout(_PATIENCE_S)
            server.connect(path)
            if not server.recv(1):  # one that hangs must not fork later what is started here meanwhile
                return False
            server.settimeout(None)
            sent = socket.send_fds(server, [request], [0, 1, 2])
            server.sendall(request[sent:])
            server.shutdown(socket.SHUT_WR)
            return bool(server.recv(1))
    except OSError:
        return False


def _inherited() -> list[str]:
    """Return what a program inherits from the raylet: OOM score, niceness, blocked signals and limits.

    The raylet raises the first two, and Ray the limit of open files, when a fork server already runs.

    Raises:
        OSError: one of them cannot be read.
    """
    with open(_OOM_SCORE) as file:
        score = file.read().strip()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    limits = ((which, *resource.getrlimit(which)) for which in _LIMITS)
    return [
        score,
        str(os.getpriority(os.PRIO_PROCESS, 0)),
        " ".join(str(int(number)) for number in blocked),
        " ".join(str(value) for limit in limits for value in limit),
    ]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
