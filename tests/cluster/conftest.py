"""One server in mode EXPLICIT with two ingress replicas, for the tests that hurt it.

Each start of a server costs a small machine some fifteen seconds: a test takes this one if it can.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import Server

CONFIG = """
backend: "identity"
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }}
parameters {{ key: "execute_delay_ms" value {{ string_value: "{delay}" }} }}
{more}
"""


ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUT" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling { step [ {
  model_name: "steady" model_version: -1
  input_map { key: "INPUT0" value: "IN" }
  output_map { key: "OUTPUT0" value: "OUT" }
} ] }
"""


def write_ensemble(repository: Path, name: str) -> None:
    """An ensemble of one step, the model `steady`."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(ENSEMBLE)


def write_model(repository: Path, name: str, delay: int = 0, more: str = "") -> Path:
    """Write (or change) an identity model; returns its directory."""
    directory = repository / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    (directory / "config.pbtxt").write_text(CONFIG.format(delay=delay, more=more))
    return directory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the test that ends the server behind all the others."""
    items.sort(key=lambda item: item.get_closest_marker("last_of_its_server") is not None)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repository")
    write_model(path, "steady")
    write_model(path, "victim", delay=5)
    broken = write_model(path, "broken")
    (broken / "config.pbtxt").write_text('backend: "nonesuch"\n')
    return path


@pytest.fixture(scope="session")
def trace_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="session")
def server(
    repository: Path, trace_directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("cluster") / "server.log"
    arguments = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        "--load-model=steady",
        "--load-model=victim",
        "--ingress-replicas=2",
        f"--trace-config=triton,file={trace_directory / 'trace.json'}",
        "--trace-config=triton,log-frequency=1",
        "--trace-config=rate=1",  # of those models whose level is not OFF
        "--metrics-config=summary_latencies=true",
        "--rate-limit=execution_count",
    ]
    started = Server(arguments, log).start()
    yield started
    started.stop()
