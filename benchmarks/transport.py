"""Measures the cost of the data plane between two processes, with an echoing replica.

    python benchmarks/transport.py            the table
    python benchmarks/transport.py --sweep    by tensor size, arena against inline

CPU time is per request and side, of the whole process: event loop, system calls and the echo included.
"""

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from app.core.inference import Cancel, cancel_nothing
from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from app.transport.channel.client import Channel
from app.transport.channel.server import ChannelServer
from app.transport.settings import TransportSettings

KEY = b"a key for a benchmark"
KIB = 1 << 10
SMALL, LARGE = 64, 150_528 * 4
INLINE = TransportSettings(arena_bytes=0)


class Echo:
    """Handler that responds at once with the request's tensors."""

    def submit(self, request: InferRequest, reply: Callable[[InferResponse], None]) -> Cancel:
        outputs = tuple([Tensor("OUTPUT0", t.datatype, t.shape, t.data) for t in request.inputs])
        reply(InferResponse(request.model_name, "1", outputs, request.id))
        return cancel_nothing

    async def control(self, verb: str, payload: Any) -> Any:
        return time.process_time()


def replica(path: str, settings: TransportSettings, pipe: Pipe) -> None:
    """Serve until the parent closes the pipe."""

    async def serve() -> None:
        server = ChannelServer(Echo(), KEY, settings)
        pipe.send(await server.listen(path, "127.0.0.1"))
        await asyncio.to_thread(pipe.poll, None)
        await server.close()

    uvloop.run(serve())


class Load:
    """Keeps `concurrency` requests in flight until `total` have been answered."""

    def __init__(self, channel: Channel, nbytes: int) -> None:
        data = np.ones((1, nbytes // 4), np.float32)
        self.request = InferRequest(
            "identity", "", (Tensor.from_array("INPUT0", data),), (RequestedOutput("OUTPUT0"),)
        )
        self.channel = channel

    async def run(self, concurrency: int, total: int) -> tuple[float, float, float]:
        """Return requests per second, and microseconds of CPU per request here and in the replica."""
        theirs = await self.channel.control("CPU")
        wall, ours = time.perf_counter(), time.process_time()
        await self._answered(concurrency, total)
        wall, ours = time.perf_counter() - wall, time.process_time() - ours
        theirs = await self.channel.control("CPU") - theirs
        return total / wall, ours / total * 1e6, theirs / total * 1e6

    async def _answered(self, concurrency: int, total: int) -> None:
        done = asyncio.Event()
        to_send, to_come = total - concurrency, total

        def sink(response: InferResponse) -> None:
            nonlocal to_send, to_come
            if response.failure:
                raise response.failure.error()
            to_come -= 1
            if to_send:
                to_send -= 1
                self.channel.submit(self.request, sink)
            elif not to_come:
                done.set()

        for _ in range(concurrency):
            self.channel.submit(self.request, sink)
        await done.wait()


async def measure(address: str, settings: TransportSettings, nbytes: int, concurrency: int) -> list[float]:
    """Return the fastest of three runs after a warm-up."""
    channel = await Channel.connect(address, KEY, settings)
    load = Load(channel, nbytes)
    total = max(concurrency, min(40_000, (1 << 30) // nbytes))
    await load.run(concurrency, max(concurrency, total // 10))
    runs = [await load.run(concurrency, total) for _ in range(3)]
    channel.close()
    return list(max(runs))


def with_replica(settings: TransportSettings, work: Callable[[list[str]], Any]) -> Any:
    """Start a replica, hand its addresses to `work`, stop it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "private" / "replica.sock")
        child = context.Process(target=replica, args=(path, settings, theirs))
        child.start()
        try:
            return work(ours.recv())
        finally:
            ours.send(None)
            child.join()


def table() -> None:
    """Print the costs of small and large tensors by way and concurrency."""
    print(f"{'':24}{'conc.':>6}{'req/s':>10}{'client us':>11}{'replica us':>12}")
    rows = (
        ("unix, 64 B", TransportSettings(), 0, SMALL),
        ("tcp, 64 B", TransportSettings(), 1, SMALL),
        ("unix arena, 600 KB", TransportSettings(), 0, LARGE),
        ("unix inline, 600 KB", INLINE, 0, LARGE),
        ("tcp inline, 600 KB", INLINE, 1, LARGE),
    )
    for name, settings, way, nbytes in rows:
        for concurrency in (1, 8, 32):

            def work(
                addresses: list[str],
                settings: TransportSettings = settings,
                way: int = way,
                nbytes: int = nbytes,
                concurrency: int = concurrency,
            ) -> list[float]:
                return uvloop.run(measure(addresses[way], settings, nbytes, concurrency))

            rate, ours, theirs = with_replica(settings, work)
            print(f"{name:24}{concurrency:6}{rate:10,.0f}{ours:11.1f}{theirs:12.1f}", flush=True)


def sweep() -> None:
    """Print the CPU of both sides per request by tensor size: steadier than rates on a busy machine."""
    columns = ("arena us at 1", "inline us at 1", "arena us at 8", "inline us at 8")
    print(f"{'tensor':>10}" + "".join(f"{name:>16}" for name in columns))
    for nbytes in (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 1024 * KIB):
        arena, inline = (
            _spent(settings, nbytes) for settings in (TransportSettings(arena_threshold=1), INLINE)
        )
        cells = (arena[0], inline[0], arena[1], inline[1])
        print(f"{nbytes // KIB:6} KiB" + "".join(f"{cell:16.0f}" for cell in cells), flush=True)


def _spent(settings: TransportSettings, nbytes: int) -> list[float]:
    def work(addresses: list[str]) -> list[float]:
        return [sum(uvloop.run(measure(addresses[0], settings, nbytes, n))[1:]) for n in (1, 8)]

    spent: list[float] = with_replica(settings, work)
    return spent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sweep", action="store_true")
    if parser.parse_args().sweep:
        sweep()
    else:
        table()
