"""The handshake before the first frame: both ends prove the key and exchange their arenas.

    server -> client   CHALLENGE   magic, version, server nonce
    client -> server   ANSWER      magic, version, client nonce, arena size, HMAC      (+ descriptor)
    server -> client   WELCOME     arena size, HMAC                                    (+ descriptor)

Every message has a fixed size, so an unproved peer cannot make a buffer grow. The proofs cover both nonces,
the arena sizes and the role of the sender: none can be replayed or reflected. On unix sockets descriptors are
sent along (SCM_RIGHTS); on TCP arena sizes are 0.
"""

import asyncio
import hmac
import os
import socket
from collections.abc import Callable
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from app.transport.memory.arena import ArenaReader, ArenaWriter
from app.transport.protocol import PROTOCOL_VERSION, ProtocolError
from app.transport.settings import TransportSettings

_MAGIC: Final = b"NEREID\r\n"
_NONCE_SIZE: Final = 32
_CHALLENGE: Final = Struct("<8sI32s")
_ANSWER: Final = Struct("<8sI32sQ32s")
_WELCOME: Final = Struct("<Q32s")
_PEER_CREDENTIALS: Final = Struct("3i")
_MINIMUM_KEY_SIZE: Final = 16


class Peer(NamedTuple):
    """The outcome of a handshake: descriptor and size of the peer's arena, -1 and 0 without one."""

    arena_fd: int
    arena_bytes: int


def check_key(key: bytes) -> None:
    """Refuse a key that could be guessed.

    Raises:
        ValueError: it is shorter than 16 bytes.
    """
    if len(key) < _MINIMUM_KEY_SIZE:
        raise ValueError(f"the key must have at least {_MINIMUM_KEY_SIZE} bytes")


def _proof(key: bytes, role: bytes, challenge: bytes, nonce: bytes, arena_bytes: int) -> bytes:
    message = b"\0".join((role, challenge, nonce, arena_bytes.to_bytes(8, "little")))
    return hmac.digest(key, message, sha256)


def _check_version(magic: bytes, version: int) -> None:
    if magic != _MAGIC:
        raise ProtocolError("the peer does not speak this protocol")
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"the peer speaks version {version} of the protocol, not {PROTOCOL_VERSION}")


def _check_proof(expected: bytes, proof: bytes) -> None:
    if not hmac.compare_digest(expected, proof):
        raise ProtocolError("the peer does not know the key")


async def greet_client(sock: socket.socket, key: bytes, arena: ArenaWriter | None) -> Peer:
    """Shake hands as server on a non-blocking socket. The caller sets the timeout.

    Raises:
        ProtocolError: the client runs as another user, does not know the key or speaks another protocol.
        OSError: the connection is lost.
    """
    _check_user(sock)
    nonce = os.urandom(_NONCE_SIZE)
    challenge = _CHALLENGE.pack(_MAGIC, PROTOCOL_VERSION, nonce)
    await _send(sock, challenge)
    answer, fd = await _receive(sock, _ANSWER.size)
    try:
        magic, version, client_nonce, arena_bytes, proof = _ANSWER.unpack(answer)
        _check_version(magic, version)
        _check_proof(_proof(key, b"client", nonce, client_nonce, arena_bytes), proof)
        ours = arena.nbytes if arena else 0
        await _send(sock, _WELCOME.pack(ours, _proof(key, b"server", nonce, client_nonce, ours)), arena)
    except BaseException:
        _close(fd)
        raise
    return Peer(fd, arena_bytes)


async def greet_server(sock: socket.socket, key: bytes, arena: ArenaWriter | None) -> Peer:
    """Shake hands as client on a non-blocking socket. The caller sets the timeout.

    Raises:
        ProtocolError: the server runs as another user, does not know the key or speaks another protocol.
        OSError: the connection is lost, as when the server refuses our key.
    """
    _check_user(sock)
    challenge, stray = await _receive(sock, _CHALLENGE.size)
    _close(stray)
    magic, version, server_nonce = _CHALLENGE.unpack(challenge)
    _check_version(magic, version)
    nonce = os.urandom(_NONCE_SIZE)
    ours = arena.nbytes if arena else 0
    proof = _proof(key, b"client", server_nonce, nonce, ours)
    await _send(sock, _ANSWER.pack(_MAGIC, PROTOCOL_VERSION, nonce, ours, proof), arena)
    welcome, fd = await _receive(sock, _WELCOME.size)
    try:
        arena_bytes, proof = _WELCOME.unpack(welcome)
        _check_proof(_proof(key, b"server", server_nonce, nonce, arena_bytes), proof)
    except BaseException:
        _close(fd)
        raise
    return Peer(fd, arena_bytes)


def map_peer_arena(
    peer: Peer, settings: TransportSettings, released: Callable[[int], None]
) -> ArenaReader | None:
    """Map the arena of a handshake's peer, if any, and close the descriptor.

    Raises:
        ProtocolError: the arena is missing, too large or not sealed.
    """
    try:
        if not peer.arena_bytes:
            return None
        if peer.arena_fd < 0 or peer.arena_bytes > settings.max_arena_bytes:
            raise ProtocolError(f"the peer's arena of {peer.arena_bytes} bytes cannot be used")
        return ArenaReader(peer.arena_fd, peer.arena_bytes, released)
    finally:
        _close(peer.arena_fd)


def _check_user(sock: socket.socket) -> None:
    """Refuse a peer of another user, whom the kernel names on a unix socket."""
    if sock.family != socket.AF_UNIX:
        return
    _, uid, _ = _PEER_CREDENTIALS.unpack(
        sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    )
    if uid != os.geteuid():
        raise ProtocolError(f"the peer runs as user {uid}")


async def _send(sock: socket.socket, message: bytes, arena: ArenaWriter | None = None) -> None:
    if arena is None:
        await asyncio.get_running_loop().sock_sendall(sock, message)
    elif socket.send_fds(sock, [message], [arena.fd]) != len(message):
        # A new socket has space for a hundred bytes; no event loop can wait to send a descriptor.
        raise ConnectionError("the socket does not accept a whole message")


async def _receive(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """Receive exactly `size` bytes, and the descriptor sent with them or -1."""
    message, fd = b"", -1
    try:
        while len(message) < size:
            await _readable(sock)
            piece, fds, _, _ = socket.recv_fds(sock, size - len(message), 1, socket.MSG_CMSG_CLOEXEC)
            for received in fds:
                _close(fd)
                fd = received
            if not piece:
                raise ConnectionError("the peer closed the connection before it was open")
            message += piece
    except BaseException:
        _close(fd)
        raise
    return message, fd


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
