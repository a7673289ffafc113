"""One run of a model's process, as the replica that has started it sees it."""

import asyncio
import os
import signal
import subprocess
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from app.core.errors import internal
from app.core.system.processes import stat_fields
from app.transport.channel.peer_process import ending
from deployments.model_process.output import Output
from deployments.model_process.start import Started, start_process
from deployments.model_process.start_message import Start
from deployments.spec import ModelSpec

_OUTPUT_S: Final = 1.0
_STATUS_BYTES: Final = 4


class Run:
    """One run of a process.

    Attributes:
        ended: set when it has ended.
    """

    def __init__(self, started: Started, name: str) -> None:
        self.ended = asyncio.Event()
        self._started = started
        self._output = Output(name, os.fdopen(started.output, "rb"))

    @classmethod
    def start(cls, spec: ModelSpec, start: Start, activity: int) -> "Run":
        """Start a process; see `start_process`.

        Raises:
            InferError: INTERNAL when it cannot be started.
        """
        try:
            server = _server(spec.key)
            directory = spec.server.placement.socket_directory
            started = start_process(spec.application, start, activity, directory, server)
        except (OSError, subprocess.SubprocessError) as error:
            raise internal(f"unable to start a process for model '{spec.name}': {error}") from error
        return cls(started, spec.name)

    def watch(self) -> None:
        """Set `ended` when it ends; on the event loop."""
        asyncio.get_running_loop().add_reader(self._started.pidfd, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._started.pidfd)
        os.close(self._started.pidfd)
        self._started.lifeline.close()
        self._kill()  # what it has started, and left running
        self.ended.set()

    def is_stopped(self) -> bool:
        """Whether it is stopped by a signal."""
        return stat_fields(self._started.pid)[1:2] in (["T"], ["t"])

    def kill(self) -> None:
        """Kill it with all that it has started, unless it has ended."""
        if self.ended.is_set():
            return
        if not self._kill():  # it has just been forked, and is in no group of its own yet
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._started.pidfd, signal.SIGKILL)

    def _kill(self) -> bool:
        """Kill its group; return whether there is one."""
        with suppress(PermissionError):
            try:
                os.killpg(self._started.pid, signal.SIGKILL)
            except ProcessLookupError:
                return False
        return True

    def discard(self) -> None:
        """End it, and do not look at it again; in place of `watch`."""
        self._started.lifeline.close()
        os.close(self._started.pidfd)
        self.close()

    def close(self) -> None:
        """Ask no more how it ended."""
        self._started.status.close()

    def ending(self) -> str:
        """Return how it ended, with its last lines. Blocks for a moment."""
        self._output.join(_OUTPUT_S)
        how = "has ended"
        with self._started.status as status, suppress(OSError):
            status.settimeout(_OUTPUT_S)
            if len(answer := status.recv(_STATUS_BYTES)) == _STATUS_BYTES:
                how = ending(int.from_bytes(answer, "little"))
        lines = "\n".join(self._output.last)
        return f"{how}: {lines}" if lines else how


def _server(key: bytes) -> str:
    """Return the name of the fork server of a server on each node."""
    return f"models-{blake2b(key, digest_size=8, person=b'models').hexdigest()}"
