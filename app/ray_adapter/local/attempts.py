"""The start of Ray on a machine that may be too busy for it: another try when one of its processes ends."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, NoReturn, cast

from app.core.system.processes import kill_descendants
from app.ray_adapter.local.ray_logs import last_lines

_TRIES: Final = 3
_SECONDS: Final = 60.0
"""Time from the first end of a process to that of the last try."""
_ATTEMPT: Final = "NEREID_RAY_START"
_POLL_S: Final = 0.1
_ESSENTIAL: Final = ("gcs_server", "raylet")
"""Executables of processes without which there is no cluster; their log files have the same names."""


class Attempt(NamedTuple):
    """A try to start Ray: its number, and when the last one must be over (`time.monotonic`)."""

    number: int = 1
    deadline: float = float("inf")

    def next(self, now: float) -> "Attempt | None":
        """Return the try after this one has failed; None when it was the last."""
        following = Attempt(self.number + 1, min(self.deadline, now + _SECONDS))
        return following if following.number <= _TRIES and now < following.deadline else None

    @classmethod
    def current(cls) -> "Attempt":
        """Return that of this process."""
        number, _, deadline = os.environ.get(_ATTEMPT, "").partition("@")
        return cls(int(number), float(deadline)) if number and deadline else cls()


def start_again(reason: str) -> NoReturn:
    """End all processes below this one and run the program anew, unless this was the last try.

    What `ray.init` has done to a process when it fails cannot be undone, so the program starts from nothing.
    """
    kill_descendants()
    following = Attempt.current().next(time.monotonic())
    if following is None:
        print(
            f"error: creating server: Unavailable - cannot start Ray: {reason}", file=sys.stderr, flush=True
        )
        os._exit(1)
    print(f"{reason}\nstarting again ({following.number} of {_TRIES})", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os.environ[_ATTEMPT] = f"{following.number}@{following.deadline}"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def watched_start(
    adapt: Callable[[Sequence[str]], Sequence[str]] = list, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Start processes of Ray in sessions of their own meanwhile, and start again when one of them ends.

    Args:
        adapt: changes the command of each.
        meanwhile: called when one has been started, for which Ray would only wait.
    """
    from ray._private import services

    started: list[subprocess.Popen[bytes]] = []
    popen = services.ConsolePopen

    def start(command: Sequence[str], *args: Any, **options: Any) -> Any:
        # In the server's own session, a signal to its process group would end them before it has drained.
        process = popen(adapt(command), *args, start_new_session=True, **options)
        started.append(process)
        meanwhile()
        return process

    over = threading.Event()
    threading.Thread(target=_watch, args=(started, over), daemon=True).start()
    services.ConsolePopen = start  # type: ignore[misc, assignment]
    try:
        yield
    except Exception:
        if reason := _failure(started):
            start_again(reason)
        raise
    finally:
        services.ConsolePopen = popen  # type: ignore[misc]
        over.set()


def _watch(started: Sequence["subprocess.Popen[bytes]"], over: threading.Event) -> None:
    deadline = Attempt.current().deadline
    while not over.wait(_POLL_S):
        reason = _failure(started)
        if not reason and time.monotonic() > deadline:
            reason = f"Ray has not started {_SECONDS:g} s after its first failure"
        if reason:
            start_again(reason)


def _failure(started: Sequence["subprocess.Popen[bytes]"]) -> str:
    """Return which process has ended, with its last words; "" for none."""
    for process in list(started):
        words = [str(word) for word in cast(Sequence[object], process.args)]
        name = os.path.basename(words[0])
        if name in _ESSENTIAL and process.poll() is not None:
            logs = [word.partition("=")[2] for word in words if word.startswith("--log_dir=")]
            told = last_lines(logs[0], name) if logs else ""
            return f"Ray's {name} has ended with status {process.returncode} while it started{told}"
    return ""
