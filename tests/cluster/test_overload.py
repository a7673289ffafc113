"""More requests than a model can answer, from clients that leave after a time.

The model sleeps, and rates are low: what is judged does not depend on how fast the machine is.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tritonclient.http

from benchmarks.goodput import Target
from benchmarks.load import Generator
from nereid_client.tools.perf.generator.job import End
from tests.cluster.conftest import write_model
from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

CAPACITY = 20
REFUSED, DEADLINE = "gRPC status 8", "gRPC status 4"
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
        pytest.param("slow", "http", "HTTP 503", marks=pytest.mark.slow),
        ("slow", "grpc", REFUSED),
        ("slow_sequences", "http timeout", "HTTP 503"),
        pytest.param("slow_sequences", "grpc", REFUSED, marks=pytest.mark.slow),
    ],
)
def test_goodput_under_overload(server: Server, load: Load, model: str, client: str, refusal: str) -> None:
    target = Target(
        server.http_port, server.grpc_port, load(model), client, wait_s=1.5, sequences=model != "slow"
    )
    with Generator() as generator:
        peak = generator.run(target.saturated(4), 3.0)
        assert not peak.failures
        flood = generator.run(target.offered(4.0 * CAPACITY, 8.0), 8.0)
        again = generator.run(target.saturated(4), 1.0)
    assert flood.infer_per_s > 0.6 * peak.infer_per_s, flood
    assert flood.failures[End.REFUSED] > 0.3 * 4 * CAPACITY * 8, flood
    assert flood.failures.keys() <= {End.REFUSED, End.LATE}, flood
    ends = {text.partition(":")[0] for text in flood.texts}
    assert refusal in ends <= {refusal, "others", "no answer in time", DEADLINE, "gRPC status 14"}
    assert not again.failures, "whoever waits is served when the flood is over"
