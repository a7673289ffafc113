"""The pool of slots over a long run, and when its process is killed; `tests/contract` has its calls."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nereid_client import connect
from tests.server import ROOT
from tests.unit.app.engine.repositories import FP32, add_model
from tests.unit.client.serving import Addresses, serve
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
