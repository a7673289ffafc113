"""A driver's fork server, and the command by which its raylet starts workers."""

import atexit
import os
import shlex
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from app.ray_adapter.local import fork_client, fork_server
from app.ray_adapter.local.changes import applies
from app.ray_adapter.local.sessions import SOCKET

_OPTION: Final = "--python_worker_command="
_PRELOAD: Final = "LD_PRELOAD"
RARE_CHECKS: Final = Path(__file__).with_name(f"rare_checks{sysconfig.get_config_var('EXT_SUFFIX')}")
"""The library made of `rare_checks.c`, where there was a compiler."""
_TITLE_BYTES: Final = 1024
"""Room for the title of a worker, which Ray writes over the arguments of the process."""


class ForkServer:
    """A process that forks Ray's workers. It starts when this is made, and ends with this program.

    Args:
        directory: for its socket; nobody else may enter it.
        module: its `prepare` imports what workers need.

    Attributes:
        path: its socket.
        pid: its process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, directory: Path, module: str) -> None:
        self.path = directory / f"workers-{os.getpid()}{SOCKET}"
        self.path.unlink(missing_ok=True)  # of an earlier program with the same id
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(socket.SOMAXCONN)
            descriptor = listener.fileno()
            arguments = [fork_server.__file__, str(descriptor), str(os.getpid()), module, " " * _TITLE_BYTES]
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,  # whose end it waits for
                pass_fds=[descriptor],
                env={**os.environ, **_preloaded(os.environ.get(_PRELOAD, ""))},
                start_new_session=True,  # a signal to the server's process group must not end it
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def starting_workers(self, command: Sequence[str]) -> list[str]:
        """Return a command of Ray; if it is the raylet's, that has workers started by this server."""
        return [self._replaced(word) if word.startswith(_OPTION) else word for word in command]

    def _replaced(self, word: str) -> str:
        worker = shlex.split(word.removeprefix(_OPTION))
        client = [sys.executable, "-I", "-S", fork_client.__file__, str(self.path), *worker]
        return f"{_OPTION}{subprocess.list2cmdline(client)}"

    def close(self) -> None:
        """End the fork server; workers go on."""
        self._process.terminate()
        self._process.communicate()
        self.path.unlink(missing_ok=True)


def _preloaded(others: str) -> dict[str, str]:
    """Return the variable by which a process loads others, then `RARE_CHECKS`; {} where that cannot be."""
    usable = (
        applies("rare-checks") and RARE_CHECKS.exists() and not {" ", ":"} & set(str(RARE_CHECKS))
    )  # which separate several
    return {_PRELOAD: f"{others}:{RARE_CHECKS}".removeprefix(":")} if usable else {}
