"""An open loop of requests whose clients leave after a time, over HTTP or gRPC, by one process.

Requests arrive at random moments, however many are in flight, as from many users who know nothing of each
other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as pb

ELEMENTS = 16


class Target(NamedTuple):
    """Where requests go and how long their clients wait; see `goodput.py` for kinds of clients."""

    http_port: int
    grpc_port: int
    model: str
    client: str
    wait_s: float
    turns: int = 0
    """Requests of each sequence; 0 for requests without one."""

    @property
    def requests(self) -> int:
        """Requests of one arrival."""
        return max(self.turns, 1)

    def sequence(self, number: int, turn: int) -> dict[str, int | bool]:
        """Return the parameters by which a request belongs to its sequence; none without sequences."""
        if not self.turns:
            return {}
        last = self.turns - 1
        return {"sequence_id": number, "sequence_start": turn == 0, "sequence_end": turn == last}


@dataclass
class Outcome:
    """What became of the requests of a run: `answers` are the durations of those answered in time.

    `ends` counts the others by status, "left" for those whose client left; `told` of them said when to retry.
    Answers after the last request was sent are not counted.
    """

    seconds: float
    began: float = field(default_factory=time.monotonic)
    sent: int = 0
    answers: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    told: int = 0

    @property
    def goodput(self) -> float:
        """Requests a second that were answered in time."""
        return len(self.answers) / self.seconds

    def p50_ms(self) -> float:
        return 1000 * median(self.answers) if self.answers else 0.0


class End(NamedTuple):
    """The end of one request: "ok", a status, or "left"."""

    status: str
    told: bool = False


Send = Callable[[int, int], Awaitable[End]]
"""Sends request `turn` of arrival `number`."""


class HttpSender:
    """HTTP/1.1 over connections that are kept; a client that leaves closes its own.

    With `timeout` the requests carry Triton's parameter of that name.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def send(self, number: int, turn: int) -> End:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._target.wait_s):
                connection = self._idle.pop() if self._idle else await self._connect()
                reader, writer = connection
                writer.write(self._request(number, turn))
                end = await _answer(reader)
        except TimeoutError:
            end = End("left")
        except (OSError, asyncio.IncompleteReadError) as error:
            end = End(type(error).__name__)
        else:
            self._idle.append(connection)
            return end
        if writer is not None:
            writer.close()
        return end

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._target.http_port)

    def _request(self, number: int, turn: int) -> bytes:
        target = self._target
        parameters: dict[str, int | bool] = target.sequence(number, turn)
        if target.client == "http timeout":
            parameters["timeout"] = int(target.wait_s * 1e6)
        tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, ELEMENTS], "data": [0.0] * ELEMENTS}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        head = (
            f"POST /v2/models/{target.model}/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}"
        )
        return head.encode() + b"\r\n\r\n" + body


class GrpcSender:
    """ModelInfer calls with a deadline, on one connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{target.grpc_port}")
        path = "/inference.GRPCInferenceService/ModelInfer"
        self._call = self._channel.unary_unary(path, pb.ModelInferRequest.SerializeToString)

    async def send(self, number: int, turn: int) -> End:
        try:
            await self._call(self._request(number, turn), timeout=self._target.wait_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return End("left")
            return End(error.code().name, any(key == "retry-after" for key, _ in error.trailing_metadata()))
        return End("ok")

    async def close(self) -> None:
        await self._channel.close()

    def _request(self, number: int, turn: int) -> pb.ModelInferRequest:
        request = pb.ModelInferRequest(model_name=self._target.model)
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, ELEMENTS])
        request.raw_input_contents.append(bytes(4 * ELEMENTS))
        for key, value in self._target.sequence(number, turn).items():
            kind = "bool_param" if isinstance(value, bool) else "int64_param"
            setattr(request.parameters[key], kind, value)
        return request


async def _answer(reader: asyncio.StreamReader) -> End:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, rest = head.partition(b"content-length:")
    await reader.readexactly(int(rest.partition(b"\r\n")[0]))
    status = head.split(b" ", 2)[1].decode()
    return End("ok" if status == "200" else status, b"\r\nretry-after:" in head)


_numbers = itertools.count(1)


async def offered(target: Target, rate: float, seconds: float) -> Outcome:
    """Send `rate` requests a second for a while; return when the last has ended."""
    return await _run(target, lambda send, outcome: _open(target, rate, send, outcome), seconds)


async def saturated(target: Target, clients: int, seconds: float) -> Outcome:
    """Send from a number of clients, each its next request after the answer to the last."""

    async def loops(send: Send, outcome: Outcome) -> None:
        async def loop() -> None:
            while time.monotonic() < outcome.began + seconds:
                await _arrival(target, send, outcome)

        await asyncio.gather(*(loop() for _ in range(clients)))

    return await _run(target, loops, seconds)


async def _run(target: Target, drive: Callable[[Send, Outcome], Awaitable[None]], seconds: float) -> Outcome:
    outcome = Outcome(seconds)
    if target.client.startswith("http"):
        http = HttpSender(target)
        await drive(http.send, outcome)
        http.close()
    else:
        sender = GrpcSender(target)
        await drive(sender.send, outcome)
        await sender.close()
    return outcome


async def _open(target: Target, rate: float, send: Send, outcome: Outcome) -> None:
    arrivals = random.Random(1)
    running: set[asyncio.Task[None]] = set()
    due = outcome.began
    while due < outcome.began + outcome.seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(_arrival(target, send, outcome))
        running.add(task)
        task.add_done_callback(running.discard)
        due += arrivals.expovariate(rate / target.requests)
    await asyncio.gather(*running)


async def _arrival(target: Target, send: Send, outcome: Outcome) -> None:
    """Send one request, or the requests of a sequence until one fails."""
    number = next(_numbers)
    for turn in range(target.requests):
        outcome.sent += 1
        began = time.monotonic()
        end = await send(number, turn)
        if end.status != "ok":
            outcome.ends[end.status] += 1
            outcome.told += end.told
            return
        now = time.monotonic()
        if now < outcome.began + outcome.seconds:
            outcome.answers.append(now - began)
