"""Forks processes of Python models of a server on a node: `python fork_server.py DESCRIPTOR IDLE_S PADDING`.

It has imported what each of them needs, in 0.5 s of a processor and 60 MiB, of which a fork shares most. It
has one thread, and nothing of Ray. The descriptor is its listening socket. It ends when nobody has asked for
a process, and none of its forks has run, for so many seconds.

It answers a request with the process's id and a descriptor of it, or with the number 0 and why there is none.
Those who ask know by its id, which their sockets have from `listen`, that it has imported all.
"""

import errno
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

PRIVATE: Final = "_nereid."
REQUEST_BYTES: Final = 1 << 20
DESCRIPTORS: Final = 3
"""With a request: the socket with whose other end the process ends, its memory of activity, its output."""
PID_BYTES: Final = 4
_REQUEST_S: Final = 3.0
_PAUSE_S: Final = 0.1
TITLE: Final = "nereid: fork server of models"
_PRELOADED: Final = (
    "deployments.model_process.program",
    "backends.python.backend",
    "deployments.bls.service",
)


class Request(NamedTuple):
    """A process to start: its directory, umask, environment, descriptors and what it is told."""

    directory: bytes
    umask: int
    environment: dict[bytes, bytes]
    name: str
    start: bytes
    descriptors: list[int]


class Refused(Exception):
    """No process is started, for a reason that who asked is to know."""


def main(descriptor: int, idle_s: float) -> None:
    """Fork a process for each request."""
    if os.fork():  # nobody's child: neither it nor its forks are part of the replica that has started it
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # threads of Ray's worker block some
    sys.path.pop(0)  # the folder of this file
    _import_all()
    _set_title(TITLE)
    # What `multiprocessing` would execute in the processes that it spawns; Triton's stub has no such file.
    del sys.modules["__main__"].__file__
    listener = socket.socket(fileno=descriptor)
    listener.listen(socket.SOMAXCONN)  # again: now its id, and no longer that of who has started it
    request = _forked(listener, idle_s)
    if request is not None:
        _become(request)


def _import_all() -> None:
    import gc

    root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 2))
    path = os.path.join(root, "app", "core", "installed", "private_packages.py")
    spec = importlib.util.spec_from_file_location("private_packages", path)
    assert spec is not None and spec.loader is not None
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    names.use_private_names(root)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads would be missing in a fork, which starts its own
    for name in _PRELOADED:
        importlib.import_module(PRIVATE + name)
    importlib.import_module(f"{PRIVATE}backends.registry.descriptions").described("")  # which are read now
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every page that it shares


def _set_title(text: str) -> None:
    importlib.import_module(f"{PRIVATE}app.core.system.process_title").set_title(text)


def _forked(listener: socket.socket, idle_s: float) -> Request | None:
    """Fork for each request and tell how forks have ended; return in the forks, and None at the end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    forks: dict[int, socket.socket] = {}
    bound, spare = _inode(listener), _spare()
    while True:
        waiting: list[Any] = [listener, reading]
        ready, _, _ = select.select(waiting, [], [], None if forks else idle_s)
        if not ready and not forks:
            _retire(listener, bound)
            return None
        if reading in ready:
            with suppress(BlockingIOError):
                os.read(reading, 4096)
            _report(forks)
        if listener not in ready:
            continue
        try:
            connection, _ = listener.accept()
        except OSError as error:
            spare = _refuse_next(listener, spare, error)
            continue
        request, pid = _served(connection)
        if request is None:
            continue
        if not pid:
            _leave(listener, connection, forks, (reading, writing, spare))
            return request
        if _started(pid, connection):
            forks[pid] = connection


def _served(connection: socket.socket) -> tuple[Request | None, int]:
    """Read a request and fork for it, see `_fork`; return no request if there is nothing more to do."""
    try:
        request = _received(connection)
        if request is not None:
            return request, _fork(request)
        connection.close()
    except Refused as refused:
        _refuse(connection, str(refused))
    return None, 0


def _inode(listener: socket.socket) -> int:
    """Return what the file of a socket is known by; 0 without one."""
    with suppress(FileNotFoundError):
        return os.stat(listener.getsockname()).st_ino
    return 0


def _retire(listener: socket.socket, bound: int) -> None:
    """Remove the socket; who has just connected finds the connection closed, and starts another server.

    The file may be another server's by now, when this one was stopped for long.
    """
    if bound == _inode(listener):
        with suppress(FileNotFoundError):
            os.unlink(listener.getsockname())


def _spare() -> int:
    """Return a descriptor in whose place one connection can be accepted; -1 if there is none."""
    with suppress(OSError):
        return os.open(os.devnull, os.O_RDONLY)
    return -1


def _refuse_next(listener: socket.socket, spare: int, error: OSError) -> int:
    """Tell the next client why its connection cannot be accepted; return another spare descriptor."""
    if spare >= 0:
        os.close(spare)
    try:
        connection, _ = listener.accept()
    except OSError:
        time.sleep(_PAUSE_S)  # it stays readable: neither fail nor turn at full speed
    else:
        _refuse(connection, _reason("accepting a connection", error))
    return _spare()


def _refuse(connection: socket.socket, reason: str) -> None:
    with connection, suppress(OSError):
        connection.settimeout(_REQUEST_S)
        connection.sendall(bytes(PID_BYTES) + reason.encode(errors="replace"))
        while connection.recv(REQUEST_BYTES):  # a close with bytes unread would take the answer away
            pass


def _reason(what: str, error: OSError) -> str:
    return f"{what}: {error.strerror or error}"


def _fork(request: Request) -> int:
    """Fork; return as `os.fork`, in the server without the descriptors of the request.

    Raises:
        Refused: it cannot fork.
    """
    try:
        pid = os.fork()
    except OSError as error:
        _close(request.descriptors)
        raise Refused(_reason("fork", error)) from None
    if pid:
        _close(request.descriptors)
    return pid


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _received(connection: socket.socket) -> Request | None:
    """Read a request; None for one that is malformed, or takes too long.

    Raises:
        Refused: there is no room for its descriptors.
    """
    connection.settimeout(_REQUEST_S)
    descriptors: list[int] = []
    data, flags = b"", 0
    try:
        data, descriptors, flags, _ = socket.recv_fds(
            connection, REQUEST_BYTES, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        while data and (more := connection.recv(REQUEST_BYTES)):
            data += more
        connection.settimeout(None)
        if len(descriptors) == DESCRIPTORS:
            directory, umask, environment, name, start = _decode(data)
            return Request(directory, umask, environment, name, start, descriptors)
    except (OSError, ValueError, TypeError) as error:
        print(f"a malformed request for a process: {error}", file=sys.stderr)
    _close(descriptors)
    if flags & socket.MSG_CTRUNC and len(descriptors) < DESCRIPTORS:
        raise Refused(_reason("receiving descriptors", OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
    return None


def _decode(data: bytes) -> Any:
    return importlib.import_module("msgspec").msgpack.decode(data)


def _started(pid: int, connection: socket.socket) -> bool:
    """Tell the process's id, with a descriptor of it; return whether it goes on."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)  # who asked could not watch it
        os.waitpid(pid, 0)
        _refuse(connection, _reason("opening a descriptor of the process", error))
        return False
    with suppress(OSError):  # who asked has given up: the process ends with its socket
        socket.send_fds(connection, [pid.to_bytes(PID_BYTES, "little")], [descriptor])
    os.close(descriptor)
    return True


def _report(forks: dict[int, socket.socket]) -> None:
    """Tell how forks have ended."""
    while forks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        if (connection := forks.pop(pid, None)) is not None:
            with connection, suppress(OSError):
                connection.send(status.to_bytes(4, "little"))


def _leave(
    listener: socket.socket, connection: socket.socket, forks: dict[int, socket.socket], own: tuple[int, ...]
) -> None:
    """Close in a fork what is the server's."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (listener, connection, *forks.values()):
        each.close()
    _close([descriptor for descriptor in own if descriptor >= 0])


def _become(request: Request) -> None:
    """Be the process of a request."""
    os.setsid()
    lifeline, activity, output = request.descriptors
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.chdir(request.directory)
    os.umask(request.umask)
    os.environ.clear()
    os.environb.update(request.environment)
    # Else all would draw the same numbers, and have the same key; `random` seeds itself.
    importlib.import_module("numpy.random").seed()
    importlib.import_module("multiprocessing").current_process().authkey = os.urandom(32)
    _set_title(f"nereid: model {request.name}")
    program = importlib.import_module(f"{PRIVATE}deployments.model_process.program")
    program.run(request.start, lifeline, activity)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
