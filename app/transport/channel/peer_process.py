"""What the kernel tells of the process at the other end of a connection: stopped, ended, out of reach."""

import fcntl
import os
import signal
import socket
from contextlib import suppress
from struct import Struct
from typing import Final

from app.core.system.processes import stat_fields

_CREDENTIALS: Final = Struct("3i")
_UNACKNOWLEDGED: Final = Struct("<24xI")
"""`tcpi_unacked` in `struct tcp_info`: segments that the peer's kernel has not acknowledged."""
_TCP_INFO_SIZE: Final = 104
_EXIT_INFO: Final = Struct("<Q52xi")
"""The mask and the wait status in the 64 bytes of `struct pidfd_info`."""
_GET_INFO: Final = 3 << 30 | _EXIT_INFO.size << 16 | 0xFF << 8 | 11
_EXIT: Final = 8


class PeerProcess:
    """The process that answers on a connected socket.

    On a unix socket the kernel names it. Over TCP only its machine is known, by what its kernel acknowledges.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.pid = 0
        self._descriptor = -1
        if sock.family == socket.AF_UNIX:
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self.pid = _CREDENTIALS.unpack(credentials)[0]
            with suppress(OSError):  # it has ended, or its pid is of another container
                self._descriptor = os.pidfd_open(self.pid)

    def obstacle(self) -> str:
        """Return why it cannot answer, as far as the kernel knows; "" for a process that may just be busy."""
        if self.pid:
            return f"its process {self.pid} is stopped" if self._status()[0] in ("T", "t") else ""
        with suppress(OSError):
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
            if _UNACKNOWLEDGED.unpack_from(info)[0]:
                return "its machine is out of reach"
        return ""

    def end(self) -> str:
        """Return how it ended; "" while it runs, and where that is not known."""
        if self._descriptor < 0:
            return ""
        state, status = self._status()
        with suppress(OSError):  # before Linux 6.15
            info = fcntl.ioctl(self._descriptor, _GET_INFO, _EXIT_INFO.pack(_EXIT, 0))
            mask, reaped = _EXIT_INFO.unpack(info)
            if mask & _EXIT:  # no longer in /proc
                state, status = "X", reaped
        if not status and state not in ("", "Z", "X"):
            return ""
        return f"its process {self.pid} {ending(status) if state else 'has ended'}"

    def close(self) -> None:
        """Release what the process is known by."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _status(self) -> tuple[str, int]:
        """Return its state and wait status from /proc; "" when its parent has waited for it."""
        fields = stat_fields(self.pid)
        return (fields[1], int(fields[-1])) if fields else ("", 0)


def ending(status: int) -> str:
    """Return how a process ended, in words, by its wait status."""
    number = os.waitstatus_to_exitcode(status & 0xFF7F)  # without the bit for a core dump
    if number >= 0:
        return f"ended with exit code {number}"
    try:
        return f"was killed by signal {-number} ({signal.Signals(-number).name})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-number}"
