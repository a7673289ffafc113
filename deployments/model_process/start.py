"""Starts the process of a Python model by a fork server, and that one where none runs."""

import errno
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from app.core.encoding import to_msgpack
from app.core.files.unix_sockets import listen_unix
from app.core.installed.installation import SERVER_PYTHON
from app.ray_adapter.local.model_environment import model_environment, model_umask
from deployments.model_process import fork_server
from deployments.model_process.fork_server import PID_BYTES, TITLE
from deployments.model_process.start_message import Start

_TITLE: Final = " " * 256
"""Room for the title of a process, which is written over its arguments."""
_TRIES: Final = 3
_ANSWER_S: Final = 30.0
"""For the imports of a server that has just been started, on a busy machine. One that takes longer hangs."""
_READY_S: Final = 10.0
"""For one that has imported all."""
_PEER: Final = Struct("iII")
_IDLE_S: Final = 30.0


class Started(NamedTuple):
    """A process that was started.

    Attributes:
        pid: its id.
        pidfd: a descriptor of it.
        lifeline: it is killed when this socket is closed.
        status: from which its wait status can be read when it has ended.
        output: the reading end of its output.
    """

    pid: int
    pidfd: int
    lifeline: socket.socket
    status: socket.socket
    output: int


def start_process(name: str, start: Start, activity: int, directory: str, server: str = "models") -> Started:
    """Start a process. Blocks.

    Args:
        name: what the process is called in listings.
        start: what it is told.
        activity: a descriptor of the memory in which it says since when it executes.
        directory: the private directory of sockets.
        server: the name there of the fork server. Those of several installations, or of services with limits
            of their own, must not be one: its processes have its code and its limits.

    Raises:
        OSError: it cannot be started.
    """
    variables = model_environment(os.environ)  # any bytes, of which UTF-8 cannot encode all
    environment = {os.fsencode(variable): os.fsencode(value) for variable, value in variables.items()}
    umask = model_umask(os.environ)
    request = to_msgpack((os.getcwdb(), umask, environment, name, to_msgpack(start)))
    path = os.path.join(directory, f"{server}.sock")
    error: Exception | None = None
    for _ in range(_TRIES):  # a server that is about to end may have accepted the first
        asked = _inode(path)
        try:
            return _ask(request, activity, path)
        except TimeoutError as failed:
            if asked in (0, _inode(path)):
                Path(path).unlink(missing_ok=True)  # it hangs: the next try starts another
            error = failed
        except ConnectionError as failed:
            error = failed
    raise OSError(f"the fork server does not answer: {error}")


def _ask(request: bytes, activity: int, path: str) -> Started:
    near, far = socket.socketpair()
    reading, writing = os.pipe()
    status = socket.socket(socket.AF_UNIX)
    try:
        with far:
            _connect(status, path)
            status.settimeout(_READY_S if _is_ready(status) else _ANSWER_S)
            sent = socket.send_fds(status, [request], [far.fileno(), activity, writing])
            status.sendall(request[sent:])
            status.shutdown(socket.SHUT_WR)
            answer, descriptors, _, _ = socket.recv_fds(status, PID_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                raise _refusal(status, answer)
        status.settimeout(None)
        return Started(int.from_bytes(answer, "little"), descriptors[0], near, status, reading)
    except BaseException:
        near.close()
        status.close()
        os.close(reading)
        raise
    finally:
        os.close(writing)


def _refusal(status: socket.socket, answer: bytes) -> OSError:
    """Return why no process was started; what is worth another try is a ConnectionError."""
    if not answer:
        return ConnectionError("it has closed the connection")
    text = b""
    while more := status.recv(4096):
        text += more
    return OSError(f"the fork server cannot start it: {text.decode(errors='replace')}")


def _inode(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_ino
    return 0


def _is_ready(connection: socket.socket) -> bool:
    """Whether the server at the other end had imported all when the connection was made."""
    pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TITLE.encode())
    return False


def _connect(sock: socket.socket, path: str) -> None:
    """Connect to a fork server; start one where none listens."""
    try:
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        _start_server(path)
        sock.connect(path)


def _start_server(path: str) -> None:
    """Start a fork server, unless another process has done so meanwhile: it listens before it runs."""
    try:
        listener = listen_unix(path)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return
    with listener:
        listener.setblocking(True)
        subprocess.run(
            [str(SERVER_PYTHON), "-u", fork_server.__file__, str(listener.fileno()), str(_IDLE_S), _TITLE],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            env=model_environment(os.environ),
            start_new_session=True,  # it outlives the replica that has started it
            check=True,
        )
