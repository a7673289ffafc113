"""One server in mode EXPLICIT with two ingress replicas, for the tests that hurt it.

Each start of a server costs a small machine some fifteen seconds: a test takes this one if it can.
"""

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.server import Server, wait_until

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


def write_python_model(repository: Path, name: str, config: str, source: str) -> None:
    """Write a Python model of one version."""
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(source)


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
def storage() -> Iterator[str]:
    """An S3 server with one model, `remote`; the address of its repository."""
    started = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "id")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        bucket = secrets.token_hex(8)  # no copy of an earlier run is of this address
        client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key="remote/config.pbtxt", Body=CONFIG.format(delay=0, more=""))
        client.put_object(Bucket=bucket, Key="remote/1/weights", Body=b"1")
        yield f"s3://http://{host}:{port}/{bucket}"
    started.stop()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps copies of remote models."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def private() -> Iterator[Path]:
    """A directory for what the server keeps; with a short path, for the sockets in it."""
    with tempfile.TemporaryDirectory(prefix="n", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(scope="session")
def trace_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="session")
def server(
    repository: Path,
    storage: str,
    cache: Path,
    private: Path,
    trace_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("cluster") / "server.log"
    arguments = [
        f"--model-repository={repository}",
        f"--model-repository={storage}",
        f"--model-cache-directory={cache}",
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
    started = Server(arguments, log, {"TMPDIR": str(private)}).start()
    # The banner counts the models that are served when it is printed: not one that a test has loaded by then.
    wait_until(lambda: "A first request:" in started.output(), 30.0, "the banner is printed")
    yield started
    started.stop()
