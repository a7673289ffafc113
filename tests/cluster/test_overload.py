"""More requests than a model can answer, from clients that leave after a time.

The model sleeps, and rates are low: what is judged does not depend on how fast the machine is.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http

from benchmarks.open_loop import Target, offered, saturated
from tests.cluster.conftest import write_model
from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CAPACITY = 20
ONE = "instance_group { count: 1 kind: KIND_CPU }"
MODELS = {"slow": ONE, "slow_sequences": f"{ONE} sequence_batching {{ direct {{}} }}"}
Load = Callable[[str], str]


@pytest.fixture
def load(server: Server, repository: Path) -> Iterator[Load]:
    """Loads a model by name."""
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    loaded: list[str] = []

    def load(name: str) -> str:
        config = write_model(repository, name, delay=1000 // CAPACITY, more=MODELS[name]) / "config.pbtxt"
        config.write_text(config.read_text().replace("max_batch_size: 8", "max_batch_size: 1"))
        client.load_model(name)
        loaded.append(name)
        return name

    yield load
    for name in loaded:
        client.unload_model(name)


@pytest.mark.parametrize(
    ("model", "client", "refusal"),
    [
        pytest.param("slow", "http", "503", marks=pytest.mark.slow),
        ("slow", "grpc", "RESOURCE_EXHAUSTED"),
        ("slow_sequences", "http timeout", "503"),
        pytest.param("slow_sequences", "grpc", "RESOURCE_EXHAUSTED", marks=pytest.mark.slow),
    ],
)
def test_goodput_under_overload(server: Server, load: Load, model: str, client: str, refusal: str) -> None:
    turns = int(model == "slow_sequences")
    calm = Target(server.http_port, server.grpc_port, load(model), client, wait_s=30.0, turns=turns)
    peak = asyncio.run(saturated(calm, clients=4, seconds=3.0))
    assert not peak.ends
    flood = asyncio.run(offered(calm._replace(wait_s=1.5), rate=4.0 * CAPACITY, seconds=8.0))
    assert flood.goodput > 0.6 * peak.goodput, flood
    assert flood.ends[refusal] == flood.told > 0.3 * flood.sent, "refusals say when to retry"
    assert set(flood.ends) <= {refusal, "left", "UNAVAILABLE"}
    again = asyncio.run(saturated(calm, clients=4, seconds=1.0))
    assert not again.ends, "whoever waits is served when the flood is over"
