"""Sockets of channels, by address: `unix:/path` and `tcp:host:port`."""

import asyncio
import contextlib
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from typing import Final

from app.core.private_files import private_directory
from app.transport.settings import TransportSettings

_MAX_UNIX_PATH: Final = 107
_OF_PROCESS: Final = re.compile(r"(?:[a-z]+-)?(\d{1,10})\.sock")
"""Names of sockets by the id of the one process that listens on them."""


def parse_address(address: str) -> str | tuple[str, int]:
    """Split an address: a path for `unix:`, host and port for `tcp:`.

    Raises:
        ValueError: it is neither.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "unix" and rest.startswith("/"):
        return rest
    host, _, port = rest.rpartition(":")
    if scheme == "tcp" and host and port.isdecimal() and int(port) < 65536:
        return host.removeprefix("[").removesuffix("]"), int(port)
    raise ValueError(f"'{address}' is not an address of a channel")


async def open_socket(address: str, settings: TransportSettings) -> socket.socket:
    """Connect to an address; the socket is non-blocking.

    Raises:
        OSError: no process listens there.
        ValueError: the address is malformed.
    """
    target = parse_address(address)
    if isinstance(target, str):
        return await _connected(socket.AF_UNIX, target)
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(*target, type=socket.SOCK_STREAM)
    error: OSError | None = None
    for family, _, _, _, sockaddr in infos:
        try:
            sock = await _connected(family, sockaddr)
        except OSError as refused:
            error = refused
            continue
        tune_tcp(sock, settings)
        return sock
    raise error or OSError(f"{address} has no address")


async def _connected(family: int, target: str | tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def tune_tcp(sock: socket.socket, settings: TransportSettings) -> None:
    """Send small frames at once, and detect within `peer_timeout` that the other machine is lost."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    probe = max(1, int(settings.peer_timeout / 4))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.peer_timeout * 1000))


async def adopt_socket(sock: socket.socket, protocol: asyncio.BufferedProtocol) -> None:
    """Hand a connected socket to the event loop; closing the transport closes it."""
    loop = asyncio.get_running_loop()
    if sock.family == socket.AF_UNIX:
        await loop.create_unix_connection(lambda: protocol, sock=sock)
    else:
        await loop.create_connection(lambda: protocol, sock=sock)


def listen_unix(path: str) -> socket.socket:
    """Listen on a socket file of mode 0600 in a directory that only this user may enter.

    The directory is made when it does not exist; a file left behind by a dead process is replaced, and those
    of other dead processes are removed.

    Raises:
        ValueError: the path is too long for a unix socket.
        PermissionError: others may enter the directory.
        OSError: a process listens there, or the file is no socket.
    """
    if len(os.fsencode(path)) > _MAX_UNIX_PATH:
        raise ValueError(f"'{path}' is longer than the {_MAX_UNIX_PATH} bytes of a unix socket's path")
    directory = os.path.dirname(path)
    private_directory(directory)
    with _locked(directory):
        _remove_dead(directory)
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind(path)
            os.chmod(path, 0o600)
            sock.listen(socket.SOMAXCONN)
        except BaseException:
            sock.close()
            raise
    return sock


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Exclude other processes that make or remove sockets there."""
    # A socket that is bound and does not listen yet would look like one left behind by a dead process.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_dead(directory: str) -> None:
    """Remove the sockets of processes that have ended, unless one listens, perhaps in another container."""
    for name in os.listdir(directory):
        match = _OF_PROCESS.fullmatch(name)
        if match is None or os.path.exists(f"/proc/{match[1]}"):
            continue
        with contextlib.suppress(OSError):  # in use, no socket, or removed meanwhile
            _remove_stale(os.path.join(directory, name))


def _remove_stale(path: str) -> None:
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(f"'{path}' exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise OSError(f"another process listens on '{path}'")


def listen_tcp(host: str, port: int) -> socket.socket:
    """Listen on a TCP port; 0 picks a free one.

    Raises:
        OSError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN)
    sock.setblocking(False)
    return sock


def tcp_address(sock: socket.socket) -> str:
    """Return the address of a listening TCP socket."""
    host, port = sock.getsockname()[:2]
    return f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}"
