"""Sockets of channels, by address: `unix:/path` and `tcp:host:port`."""

import asyncio
import socket

from app.transport.settings import TransportSettings


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
