"""The arbiter's process: one on a node, for the replicas of one server.

Resources belong to a node, as Triton's belong to a server: replicas on two nodes never wait for each other.

A replica that finds none starts one (`python -m deployments.rate_limiting.process SOCKET RESOURCES`); a lock
beside the socket lets one win. It outlives the replica that started it, and ends when nobody has been
connected for a while. What a connection holds is free when the connection ends, so a killed replica keeps
nothing. When the arbiter itself is killed, the replicas start another and tell it what they are executing;
it gives no turn before they have had the time to.
"""

import asyncio
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import Final, cast

import msgspec

from app.core.config.rate_limit import Explicit
from app.core.errors import InferError
from app.transport.channel.sockets import listen_unix
from deployments.rate_limiting.arbiter import Arbiter
from deployments.rate_limiting.wire import (
    AcquireRequest,
    Enrolled,
    Granted,
    Leave,
    Reader,
    Register,
    Release,
    ToArbiter,
    ToReplica,
    frame,
)

LINGER_S: Final = 10.0
RECOVERY_S: Final = 1.0
"""How long the successor of an arbiter that was killed waits for what the replicas hold."""

_decoder: Final = msgspec.msgpack.Decoder(ToArbiter)


class Node:
    """The arbiter and its connections. Lives on one event loop."""

    def __init__(self, explicit: Explicit, opens: float) -> None:
        """`opens` is when the first turn may be given, on the loop's clock."""
        self.arbiter: Arbiter[tuple[_Replica, int]] = Arbiter(explicit)
        self.idle = asyncio.Event()
        self.idle.set()
        self._opens = opens
        self._connected = 0
        asyncio.get_running_loop().call_at(opens, self.grant)

    def joined(self) -> None:
        """A replica has connected."""
        self._connected += 1
        self.idle.clear()

    def left(self) -> None:
        """A replica has gone."""
        self._connected -= 1
        if not self._connected:
            self.idle.set()

    def grant(self) -> None:
        """Give turns, and tell those who got them."""
        if asyncio.get_running_loop().time() >= self._opens:
            for replica, instance in self.arbiter.grant():
                replica.granted(instance)


class _Replica(asyncio.Protocol):
    """The connection of a replica."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader: Reader[ToArbiter] = Reader(_decoder)
        self._wishes: dict[int, int] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._node.joined()

    def connection_lost(self, error: Exception | None) -> None:
        for instance in self._wishes:
            self._node.arbiter.leave((self, instance))
        self._node.left()
        self._node.grant()

    def data_received(self, data: bytes) -> None:
        """Take in all that came before giving turns: an instance that executed may want to again."""
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except (ValueError, KeyError, msgspec.MsgspecError):
            assert self._transport is not None
            self._transport.abort()
        self._node.grant()

    def granted(self, instance: int) -> None:
        """Tell the replica."""
        self._send(Granted(instance, self._wishes[instance]))

    def _receive(self, message: ToArbiter) -> None:
        arbiter = self._node.arbiter
        if isinstance(message, AcquireRequest):
            arbiter.wish((self, message.instance))
            self._wishes[message.instance] = message.wish
        elif isinstance(message, Release):
            arbiter.release((self, message.instance))
        elif isinstance(message, Leave):
            arbiter.leave((self, message.instance))
            self._wishes.pop(message.instance, None)
        else:
            self._send(Enrolled(message.request, self._enrol(message)))

    def _enrol(self, message: Register) -> str:
        arbiter = self._node.arbiter
        try:
            arbiter.enrol({(self, number): demand for number, demand in message.demands.items()})
        except InferError as error:
            return error.message
        self._wishes.update(dict.fromkeys(message.demands, 0))
        for number in message.held:
            arbiter.hold((self, number))
        return ""

    def _send(self, message: ToReplica) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))


async def serve(listener: socket.socket, explicit: Explicit, wait_s: float) -> None:
    """Arbitrate until nobody is connected any more."""
    loop = asyncio.get_running_loop()
    node = Node(explicit, loop.time() + wait_s)
    server = await loop.create_unix_server(lambda: _Replica(node), sock=listener)
    while True:
        await node.idle.wait()
        await asyncio.sleep(LINGER_S)
        if node.idle.is_set():
            break
    server.close()


def _become(path: Path, explicit: Explicit) -> None:
    """Listen, and go on in a process that has no parent; returns in neither.

    A process that a Ray worker starts is killed with that worker unless it has cut the tie.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)  # somebody else is it
    wait_s = RECOVERY_S if path.exists() else 0.0  # one that ends of itself takes its socket with it
    listener = listen_unix(str(path))
    if os.fork():
        os._exit(0)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    try:
        asyncio.run(serve(listener, explicit, wait_s))
    finally:
        path.unlink(missing_ok=True)
        os._exit(0)


if __name__ == "__main__":
    _become(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Explicit))
