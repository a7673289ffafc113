"""A replica's side of the rate limiter: asks its node's arbiter for turns."""

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

from app.core.config.rate_limit import Demand, Explicit
from app.core.errors import invalid_arg, unavailable
from deployments.rate_limiting.wire import (
    AcquireRequest,
    Enrolled,
    Leave,
    Reader,
    Register,
    Release,
    ToArbiter,
    ToReplica,
    frame,
)

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_START_S: Final = 30.0
_ENROL_S: Final = 60.0
_ROOT: Final = Path(__file__).parents[2]
_decoder: Final = msgspec.msgpack.Decoder(ToReplica)

Done = Callable[[], None]


class _State(Enum):
    IDLE = 0
    WAITING = 1
    HELD = 2


class Permits:
    """The turns of one instance. Lives on the data-plane loop."""

    def __init__(self, limiter: "RateLimiter", number: int, demand: Demand) -> None:
        self.number = number
        self.demand = demand
        self.state = _State.IDLE
        self.wish = 0
        self._limiter = limiter
        self._granted: Done | None = None

    def ask(self, granted: Done) -> None:
        """Call `granted` once, when the instance may execute."""
        self.wish += 1
        self.state, self._granted = _State.WAITING, granted
        self._limiter.send(AcquireRequest(self.number, self.wish))

    def release(self) -> None:
        """Give the turn back, or wait for it no longer."""
        self.state, self._granted = _State.IDLE, None
        self._limiter.send(Release(self.number))

    def leave(self) -> None:
        """The instance is no more."""
        self._limiter.leave(self)

    def granted(self, wish: int) -> None:
        """The arbiter's answer; one to an earlier wish was on its way when that was withdrawn."""
        granted = self._granted
        if self.state is _State.WAITING and wish == self.wish and granted is not None:
            self.state, self._granted = _State.HELD, None
            granted()


class RateLimiter:
    """The connection to the arbiter of this node, made again whenever it ends. Lives on the data-plane loop.

    While there is no arbiter nobody gets a turn; whoever executes goes on.
    """

    def __init__(self, directory: str, key: bytes, explicit: Explicit) -> None:
        """`directory` is for sockets, this user's alone; `key` is the server's, which has its own arbiter."""
        server = blake2b(key, digest_size=8, person=b"rate-limit").hexdigest()
        self._path = Path(directory, f"limiter-{server}.sock")
        self._explicit = explicit
        self._turns: dict[int, Permits] = {}
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._unsent: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._connected = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._stay_connected())

    async def enrol(self, demands: Mapping[int, Demand]) -> dict[int, Permits]:
        """Add instances, by any numbers of the caller's; returns their turns by the same.

        Raises:
            InferError: INVALID_ARG when one of them could never execute; UNAVAILABLE without an arbiter.
        """
        made = {number: Permits(self, next(self._numbers), demand) for number, demand in demands.items()}
        try:
            async with asyncio.timeout(_ENROL_S):
                error = await self._enrolled(made.values())
        except TimeoutError:
            for turns in made.values():  # it may have come through, only the answer has not
                self.send(Leave(turns.number))
            raise unavailable("the rate limiter does not answer") from None
        if error:
            raise invalid_arg(error)
        self._turns.update((turns.number, turns) for turns in made.values())
        return made

    def leave(self, turns: Permits) -> None:
        """An instance is no more."""
        if self._turns.pop(turns.number, None) is not None:
            self.send(Leave(turns.number))

    def send(self, message: ToArbiter) -> None:
        """Send, together with what else is said in this turn of the loop.

        An instance that gives its turn back and wants another at once is then compared with those who wait.
        """
        if self._transport is None:
            return  # all that counts is told again to the next arbiter
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(frame(message))

    async def close(self) -> None:
        """End the connection."""
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.WriteTransport) -> None:
        """There is an arbiter: tell it who is here, who executes and who wants to."""
        self._transport = transport
        members = self._turns.values()
        if members:
            held = [turns.number for turns in members if turns.state is _State.HELD]
            self.send(Register(-1, {turns.number: turns.demand for turns in members}, held))
        for turns in members:
            if turns.state is _State.WAITING:
                self.send(AcquireRequest(turns.number, turns.wish))
        self._connected.set()

    def connection_lost(self) -> None:
        """The arbiter has gone."""
        self._transport = None
        self._unsent.clear()
        self._connected.clear()
        for answer in self._answers.values():
            answer.cancel()

    def receive(self, message: ToReplica) -> None:
        """Take an answer."""
        if isinstance(message, Enrolled):
            answer = self._answers.pop(message.request, None)
            if answer is not None and not answer.done():
                answer.set_result(message.error)
            elif message.error:
                logger.error("the rate limiter refuses an instance: %s", message.error)
        elif message.instance in self._turns:
            self._turns[message.instance].granted(message.wish)

    async def _enrolled(self, turns: Iterable[Permits]) -> str:
        request = Register(next(self._numbers), {each.number: each.demand for each in turns})
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
                _, link = await loop.create_unix_connection(lambda: _Link(self), str(self._path))
                await link.ended.wait()
            except OSError:
                await asyncio.to_thread(self._start_arbiter)
            await asyncio.sleep(_RETRY_S)

    def _start_arbiter(self) -> None:
        """Returns when one listens, unless another process is starting one."""
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


class _Link(asyncio.Protocol):
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
