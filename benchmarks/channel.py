"""A round trip over a channel, read and written by Python and by the extension, in turn.

    python -m benchmarks.channel

CPU time of both ends, which share a thread, with its system calls. Each figure is the fastest twentieth of
many short bursts, so that it holds on a machine that others use too.
"""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from app.core.tensors import InferRequest, InferResponse, Tensor
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer, Reply
from app.transport.settings import TransportSettings

KEY: Final = b"a key for a benchmark"
PLANES: Final = ("python", "native")
REQUEST: Final = InferRequest("identity", "", (Tensor("INPUT0", "FP32", (1, 16), bytes(64)),))
ROUNDS, BURST = 150, 400


class Echo:
    """Handler that responds at once with the request's tensors."""

    def submit(self, request: InferRequest, reply: Reply) -> Any:
        reply(InferResponse(request.model_name, "1", request.inputs, request.id))
        return lambda: None

    async def control(self, verb: str, payload: Any) -> Any:
        return None


async def burst(channel: Channel, in_flight: int) -> float:
    """Return the microseconds of CPU of a round trip, with so many requests in flight."""
    done = asyncio.get_running_loop().create_future()
    sent = answered = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        channel.submit(REQUEST, received)

    def received(_: InferResponse) -> None:
        nonlocal answered
        answered += 1
        if answered == BURST:
            done.set_result(None)
        elif sent < BURST:
            send()

    began = time.thread_time()
    for _ in range(in_flight):
        send()
    await done
    return (time.thread_time() - began) / BURST * 1e6


async def main(directory: Path) -> None:
    """Print the table."""
    servers, channels = [], []
    for plane in PLANES:
        settings = TransportSettings(data_plane=plane)
        servers.append(ChannelServer(Echo(), KEY, settings))
        (address,) = await servers[-1].listen(str(directory / plane / "socket"))
        channels.append(await Channel.connect(address, KEY, settings))
    print("| in flight | Python, us | native, us | ratio |\n|---|---|---|---|")
    for in_flight in (1, 8, 32):
        rounds = [[await burst(channel, in_flight) for channel in channels] for _ in range(ROUNDS)]
        python, native = (sorted(column)[ROUNDS // 20] for column in zip(*rounds, strict=True))
        print(f"| {in_flight} | {python:.1f} | {native:.1f} | {native / python:.2f} |")
    for channel in channels:
        channel.close()
    for server in servers:
        await server.close()


if __name__ == "__main__":
    uvloop.install()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(Path(directory)))
