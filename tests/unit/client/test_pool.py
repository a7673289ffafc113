"""The pool of slots over a long run, when its process is killed, and when the server forgets its region.

`tests/contract` has its calls.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nereid_client import ServerError, connect, connect_async
from nereid_client.errors import Unavailable
from nereid_client.memory import HostMemory
from nereid_client.pool import AsyncPool
from tests.server import ROOT
from tests.unit.client.serving import Addresses, serve
from tests.unit.nereid.engine.repositories import FP32, add_model
from tests.waiting import block_until

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    repository = tmp_path_factory.mktemp("models")
    add_model(repository, "double", config=FP32.replace("-1", "16"))
    yield from serve(repository, load_model=["double"], allow_client_shm=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["http", "grpc"])
def test_a_hundred_thousand_answers_through_a_pool_are_right(addresses: Addresses, url: str) -> None:
    values = np.arange(16, dtype=np.float32)
    inputs = ({"IN": values + n} for n in range(100_000))
    with (
        connect(getattr(addresses, url), timeout=60) as server,
        server.pool(slots=8, slot_bytes="4KiB") as pool,
    ):
        results = server.model("double").via(pool).map(inputs, concurrency=4)
        for n, result in enumerate(results):
            assert (result["OUT"] == 2 * (values + n)).all(), n
            result.close()
        assert pool.missed < 1000  # slots come back
    assert not (SHARED_MEMORY / pool.region).exists()


async def forget(pool: AsyncPool) -> None:
    """Make the server not know the region any more, as one that was started anew."""
    await pool.memory.unregister(pool._transport, 30)


@pytest.mark.parametrize("url", ["http", "grpc"])
async def test_calls_in_flight_when_the_server_forgets_share_one_registration(
    addresses: Addresses, url: str
) -> None:
    async with connect_async(getattr(addresses, url), timeout=30) as server, server.pool(32, 256) as pool:
        model = server.model("double").via(pool)
        await model(IN=range(16))
        for restarts in range(1, 4):
            await forget(pool)
            results = await asyncio.gather(*(model(IN=np.full(16, n, np.float32)) for n in range(32)))
            assert [result["OUT"][0] for result in results] == [2 * n for n in range(32)]
            assert (SHARED_MEMORY / pool.region).exists() and pool.registrations == 1 + restarts
            for result in results:
                result.close()
            del results, result
            await asyncio.sleep(0)  # the slots come back
    assert pool.missed == 0 and not (SHARED_MEMORY / pool.region).exists()


@pytest.mark.parametrize("url", ["http", "grpc"])
async def test_a_region_that_the_server_knows_is_registered(addresses: Addresses, url: str) -> None:
    async with connect_async(getattr(addresses, url), timeout=30) as server, server.pool(1, 256) as pool:
        await pool.register_again(1, 30)  # the answer to the registration before it was lost
        assert (SHARED_MEMORY / pool.region).exists() and pool.registrations == 2
        assert (await server.model("double").via(pool)(IN=range(16)))["OUT"][1] == 2


async def test_a_failed_registration_is_repeated_and_leaves_the_region(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_async(addresses.http, timeout=30) as server, server.pool(1, 256) as pool:
        register, failures = server.transport.register, ["it starts", "it starts"]

        async def fails_at_first(*words: Any) -> None:
            if failures:
                raise Unavailable("UNAVAILABLE", failures.pop())
            await register(*words)

        monkeypatch.setattr(server.transport, "register", fails_at_first)
        await forget(pool)
        model = server.model("double").via(pool)
        with pytest.raises(Unavailable):
            await model.options(retry=False)(IN=range(16))
        assert (SHARED_MEMORY / pool.region).exists()
        assert (await model(IN=range(16)))["OUT"][1] == 2 and not failures


async def test_a_call_waits_for_a_registration_no_longer_than_its_deadline(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_async(addresses.http, timeout=30) as server, server.pool(1, 256) as pool:
        released = asyncio.Event()

        async def hangs(*_: Any) -> None:
            await released.wait()

        monkeypatch.setattr(server.transport, "register", hangs)
        await forget(pool)
        model = server.model("double").via(pool)
        await model.signature()
        with pytest.raises(ServerError, match="no answer in time"):
            await model.options(timeout=0.05)(IN=range(16))
        released.set()


async def test_a_pool_ends_without_an_error_where_the_server_has_gone(tmp_path: Path) -> None:
    add_model(tmp_path, "double", config=FP32)
    served = serve(tmp_path, load_model=["double"], allow_client_shm=True)
    async with connect_async(next(served).http, timeout=30) as server:
        async with server.pool(1, 256) as pool:
            next(served, None)
        assert not (SHARED_MEMORY / pool.region).exists()


def test_regions_of_killed_processes_are_removed_by_the_next_pool() -> None:
    code = """
import sys
from multiprocessing import resource_tracker
from nereid_client.memory import HostMemory
print(HostMemory(64).name, resource_tracker._resource_tracker._pid, flush=True)
kept = HostMemory(64)
print(kept.name, flush=True)
sys.stdin.read()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "client")}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as client:
        assert client.stdout is not None
        _, tracker = client.stdout.readline().split()
        kept = SHARED_MEMORY / client.stdout.readline().strip()
        assert f"-{client.pid}-" in kept.name
        HostMemory(64).close()
        assert kept.exists()  # its process lives
        os.kill(int(tracker), signal.SIGKILL)
        client.kill()
    assert kept.exists()
    HostMemory(64).close()
    assert not kept.exists()


def test_memory_is_gone_when_the_process_is_killed(addresses: Addresses) -> None:
    code = f"""
import sys
import nereid_client
with nereid_client.connect("{addresses.http}") as server, server.pool() as pool:
    server.model("double").via(pool)(IN=range(16))
    print(pool.region, pool.missed, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
    ) as client:
        assert client.stdout is not None
        region, missed = client.stdout.readline().split()
        assert (SHARED_MEMORY / region).is_file() and missed == "0"
        client.kill()
    block_until(lambda: not (SHARED_MEMORY / region).exists())
