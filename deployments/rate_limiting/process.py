"""The process of the arbiter: one per node for the replicas of one server.

Resources belong to a node, as Triton's belong to a server: replicas on two nodes never wait for each other.

A replica that finds no arbiter starts one (`python -m deployments.rate_limiting.process SOCKET RESOURCES`); a
lock file beside the socket lets one win. The arbiter outlives that replica, and ends some time after the
last connection. The permits of a connection end with it, so a killed replica holds none. When the arbiter is
killed, the replicas start another and send it their state; it grants no permit before they had time to.
"""

import asyncio
import fcntl
import os
import socket
import sys
from pathlib import Path
from typing import Final, cast

import msgspec

from app.core.config.rate_limit import ResourceCounts
from app.core.errors import InferError
from app.core.files.unix_sockets import listen_unix
from deployments.rate_limiting.arbiter import Arbiter
from deployments.rate_limiting.wire import (
    AcquireRequest,
    Granted,
    Reader,
    Register,
    Registered,
    Release,
    ToArbiter,
    ToReplica,
    Unregister,
    frame,
)

LINGER_S: Final = 10.0
RECOVERY_S: Final = 1.0
"""Time in which the successor of a killed arbiter waits for the replicas to report their permits."""

_decoder: Final = msgspec.msgpack.Decoder(ToArbiter)


class Node:
    """The arbiter and its connections. Belongs to one event loop.

    Args:
        explicit: the operator's counts of resources.
        opens: the time from which permits are granted, on the loop's clock.
    """

    def __init__(self, explicit: ResourceCounts, opens: float) -> None:
        self.arbiter: Arbiter[tuple[_Replica, int]] = Arbiter(explicit)
        self.idle = asyncio.Event()
        self.idle.set()
        self._opens = opens
        self._connected = 0
        asyncio.get_running_loop().call_at(opens, self.grant)

    def joined(self) -> None:
        """Count a new connection."""
        self._connected += 1
        self.idle.clear()

    def left(self) -> None:
        """Count a lost connection."""
        self._connected -= 1
        if not self._connected:
            self.idle.set()

    def grant(self) -> None:
        """Grant the permits that are available and inform their replicas."""
        if asyncio.get_running_loop().time() >= self._opens:
            for replica, instance in self.arbiter.grant():
                replica.granted(instance)


class _Replica(asyncio.Protocol):
    """The connection of a replica."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._reader: Reader[ToArbiter] = Reader(_decoder)
        self._requests: dict[int, int] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._node.joined()

    def connection_lost(self, error: Exception | None) -> None:
        for instance in self._requests:
            self._node.arbiter.unregister((self, instance))
        self._node.left()
        self._node.grant()

    def data_received(self, data: bytes) -> None:
        # All messages are handled before permits are granted: an instance may request again after a release.
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except (ValueError, KeyError, msgspec.MsgspecError):
            assert self._transport is not None
            self._transport.abort()
        self._node.grant()

    def granted(self, instance: int) -> None:
        """Inform the replica of a permit."""
        self._send(Granted(instance, self._requests[instance]))

    def _receive(self, message: ToArbiter) -> None:
        arbiter = self._node.arbiter
        if isinstance(message, AcquireRequest):
            arbiter.request((self, message.instance))
            self._requests[message.instance] = message.number
        elif isinstance(message, Release):
            arbiter.release((self, message.instance))
        elif isinstance(message, Unregister):
            arbiter.unregister((self, message.instance))
            self._requests.pop(message.instance, None)
        else:
            self._send(Registered(message.request, self._register(message)))

    def _register(self, message: Register) -> str:
        arbiter = self._node.arbiter
        try:
            arbiter.register({(self, number): demand for number, demand in message.demands.items()})
        except InferError as error:
            return error.message
        self._requests.update(dict.fromkeys(message.demands, 0))
        for number in message.held:
            arbiter.restore((self, number))
        return ""

    def _send(self, message: ToReplica) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))


async def serve(listener: socket.socket, explicit: ResourceCounts, wait_s: float) -> None:
    """Serve connections until there have been none for `LINGER_S`."""
    loop = asyncio.get_running_loop()
    node = Node(explicit, loop.time() + wait_s)
    server = await loop.create_unix_server(lambda: _Replica(node), sock=listener)
    while True:
        await node.idle.wait()
        await asyncio.sleep(LINGER_S)
        if node.idle.is_set():
            break
    server.close()


def _become_arbiter(path: Path, explicit: ResourceCounts) -> None:
    """Listen, then serve in a detached process; does not return.

    Ray kills the processes that a worker started along with it, unless they are detached.
    """
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)  # another process is the arbiter
    wait_s = RECOVERY_S if path.exists() else 0.0  # an arbiter that ends by itself removes its socket
    listener = listen_unix(str(path))
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    try:
        asyncio.run(serve(listener, explicit, wait_s))
    finally:
        path.unlink(missing_ok=True)
        os._exit(0)


if __name__ == "__main__":
    _become_arbiter(Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ResourceCounts))
