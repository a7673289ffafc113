"""A replica's side of the rate limiter: requests execution permits from the node's arbiter."""

import asyncio
import itertools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Final, cast

import msgspec

from app.core.config.rate_limit import Demand, ResourceCounts
from app.core.errors import invalid_arg, unavailable
from deployments.rate_limiting.wire import (
    AcquireRequest,
    Reader,
    Register,
    Registered,
    Release,
    ToArbiter,
    ToReplica,
    Unregister,
    frame,
)

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_START_S: Final = 30.0
_REGISTER_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
_decoder: Final = msgspec.msgpack.Decoder(ToReplica)

OnGranted = Callable[[], None]


class _State(Enum):
    IDLE = 0
    WAITING = 1
    HELD = 2


class Permits:
    """The permits of one instance, one at a time. Belongs to the data-plane loop."""

    def __init__(self, limiter: "RateLimiter", number: int, demand: Demand) -> None:
        self.number = number
        self.demand = demand
        self.state = _State.IDLE
        self.requests = 0
        self._limiter = limiter
        self._on_granted: OnGranted | None = None

    def acquire(self, on_granted: OnGranted) -> None:
        """Request a permit; `on_granted` is called once, when the instance may execute."""
        self.requests += 1
        self.state, self._on_granted = _State.WAITING, on_granted
        self._limiter.send(AcquireRequest(self.number, self.requests))

    def release(self) -> None:
        """Release the permit, or withdraw the request."""
        self.state, self._on_granted = _State.IDLE, None
        self._limiter.send(Release(self.number))

    def unregister(self) -> None:
        """Remove the instance."""
        self._limiter.unregister(self)

    def granted(self, request: int) -> None:
        """Handle the arbiter's answer; one to a withdrawn request may arrive late."""
        on_granted = self._on_granted
        if self.state is _State.WAITING and request == self.requests and on_granted is not None:
            self.state, self._on_granted = _State.HELD, None
            on_granted()


class RateLimiter:
    """The connection to the arbiter of this node. Belongs to the data-plane loop.

    It is restored when it ends. Without an arbiter no permit is granted; instances that execute continue.

    Args:
        directory: the directory of the socket, private to this user.
        key: the server's key; each server has an arbiter of its own.
        explicit: the operator's counts of resources.
    """

    def __init__(self, directory: str, key: bytes, explicit: ResourceCounts) -> None:
        server = blake2b(key, digest_size=8, person=b"rate-limit").hexdigest()
        self._path = Path(directory, f"limiter-{server}.sock")
        self._explicit = explicit
        self._permits: dict[int, Permits] = {}
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._connected = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    async def register(self, demands: Mapping[int, Demand]) -> dict[int, Permits]:
        """Add instances, by any numbers of the caller's; return their permits by the same numbers.

        Raises:
            InferError: INVALID_ARG when one of them could never execute; UNAVAILABLE without an arbiter.
        """
        made = {number: Permits(self, next(self._numbers), demand) for number, demand in demands.items()}
        try:
            async with asyncio.timeout(_REGISTER_S):
                error = await self._register(made.values())
        except TimeoutError:
            for permits in made.values():  # the request may have arrived, and only its answer be late
                self.send(Unregister(permits.number))
            raise unavailable("the rate limiter does not answer") from None
        if error:
            raise invalid_arg(error)
        self._permits.update((permits.number, permits) for permits in made.values())
        return made

    def unregister(self, permits: Permits) -> None:
        """Remove an instance."""
        if self._permits.pop(permits.number, None) is not None:
            self.send(Unregister(permits.number))

    def send(self, message: ToArbiter) -> None:
        """Send a message, in one write with the others of this iteration of the loop.

        So an instance that releases its permit and requests another is compared with those that wait.
        """
        if self._transport is None:
            return  # the next arbiter gets the whole state
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(message))

    async def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.WriteTransport) -> None:
        """Send the state of the instances to a new arbiter."""
        self._transport = transport
        members = self._permits.values()
        if members:
            held = [permits.number for permits in members if permits.state is _State.HELD]
            self.send(Register(-1, {permits.number: permits.demand for permits in members}, held))
        for permits in members:
            if permits.state is _State.WAITING:
                self.send(AcquireRequest(permits.number, permits.requests))
        self._connected.set()

    def connection_lost(self) -> None:
        """Drop unsent messages and pending answers of an arbiter that ended."""
        self._transport = None
        self._unsent.clear()
        self._connected.clear()
        for answer in self._answers.values():
            answer.cancel()

    def receive(self, message: ToReplica) -> None:
        """Handle an answer of the arbiter."""
        if isinstance(message, Registered):
            answer = self._answers.pop(message.request, None)
            if answer is not None and not answer.done():
                answer.set_result(message.error)
            elif message.error:
                logger.error("the rate limiter refuses an instance: %s", message.error)
        elif message.instance in self._permits:
            self._permits[message.instance].granted(message.number)

    async def _register(self, added: Iterable[Permits]) -> str:
        request = Register(next(self._numbers), {each.number: each.demand for each in added})
        while True:
            await self._connected.wait()
            answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._answers[request.request] = answer
            self.send(request)
            await asyncio.wait([answer])
            self._answers.pop(request.request, None)
            if not answer.cancelled():
                return answer.result()

    def _flush(self) -> None:
        if self._transport is not None and self._unsent:
            self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                _, connection = await loop.create_unix_connection(lambda: _Connection(self), str(self._path))
                await connection.ended.wait()
            except OSError:
                await asyncio.to_thread(self._start_arbiter)
            await asyncio.sleep(_RETRY_S)

    def _start_arbiter(self) -> None:
        """Start an arbiter; return when it listens, or when another process is starting one."""
        # -P: the directory in which the server was started may have a `deployments` of its own.
        command = [sys.executable, "-P", "-m", "deployments.rate_limiting.process", str(self._path)]
        resources = msgspec.json.encode(self._explicit).decode()
        try:
            ended = subprocess.run(
                [*command, resources],
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=_START_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            logger.error("cannot start the rate limiter: %s", error)
            return
        if ended.returncode:
            logger.error("cannot start the rate limiter: %s", ended.stderr.decode(errors="replace"))


class _Connection(asyncio.Protocol):
    """A connection to an arbiter."""

    def __init__(self, limiter: RateLimiter) -> None:
        self.ended = asyncio.Event()
        self._limiter = limiter
        self._reader: Reader[ToReplica] = Reader(_decoder)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._limiter.connection_made(cast(asyncio.WriteTransport, transport))

    def data_received(self, data: bytes) -> None:
        for message in self._reader.feed(data):
            self._limiter.receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._limiter.connection_lost()
        self.ended.set()
