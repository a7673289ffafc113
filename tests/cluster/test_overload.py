"""More requests than a model can answer, from clients that leave after a second."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http

from benchmarks.open_loop import Target, offered, saturated
from tests.cluster.conftest import write_model
from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CAPACITY = 50
SEQUENCES = "sequence_batching { direct {} }"
MODELS = {"direct": "", "sequences": SEQUENCES}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, server: Server, repository: Path) -> Iterator[str]:
    """A model that answers 50 requests a second, because it sleeps."""
    name = f"slow_{request.param}"
    one = "instance_group { count: 1 kind: KIND_CPU }"
    write_model(repository, name, delay=1000 // CAPACITY, more=one + MODELS[request.param])
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    client.load_model(name)
    yield name
    client.unload_model(name)


@pytest.mark.parametrize(
    ("client", "refusal"), [("http", "503"), ("http timeout", "503"), ("grpc", "RESOURCE_EXHAUSTED")]
)
def test_goodput_under_overload(server: Server, model: str, client: str, refusal: str) -> None:
    ports = server.http_port, server.grpc_port
    calm = Target(*ports, model, client, wait_s=30.0, turns=model == "slow_sequences")
    peak = asyncio.run(saturated(calm, clients=4, seconds=2.0))
    assert not peak.ends
    flood = asyncio.run(offered(calm._replace(wait_s=1.0), rate=5.0 * CAPACITY, seconds=6.0))
    assert flood.goodput > 0.7 * peak.goodput
    assert flood.ends[refusal] == flood.told > 0.5 * flood.sent, "refusals say when to retry"
    assert set(flood.ends) <= {refusal, "left", "UNAVAILABLE"}
    again = asyncio.run(saturated(calm, clients=4, seconds=1.0))
    assert not again.ends, "whoever waits is served when the flood is over"
