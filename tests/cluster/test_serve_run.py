"""`serve run` with a configuration: its repository is followed, and it drains when it is told to stop."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http
import yaml
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_model
from tests.cluster.load import Load, check_stop_under_load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class ServeRun(Server):
    """`serve run` with a configuration, as `make serve` does it."""

    program = (sys.executable, "-c", "from nereid.commands import nereid_serve; nereid_serve()")

    def _arguments_with_ports(self) -> list[str]:
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
        names = (argument.removeprefix("--").split("=") for argument in self._arguments)
        args = {**ports, **{name.replace("-", "_"): value for name, value in names}}
        application = {"name": "nereid", "import_path": "nereid:build", "route_prefix": None, "args": args}
        configuration = self.log.with_suffix(".yaml")
        document = {"proxy_location": "Disabled", "applications": [application]}
        configuration.write_text(yaml.safe_dump(document))
        return [str(configuration)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository of the server of this module."""
    path = tmp_path_factory.mktemp("followed") / "models"
    write_model(path, "steady")
    write_model(path, "changed")
    write_model(path, "slow", delay=300)
    return path


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    """In mode POLL; the last test ends it."""
    arguments = [f"--model-repository={models}", "--model-control-mode=poll", "--repository-poll-secs=1"]
    started = ServeRun(arguments, models.parent / "log").start()
    yield started
    started.stop()


def test_polling(server: Server, models: Path) -> None:
    http = tritonclient.http.InferenceServerClient(server.http_url)
    steady, old = server.replicas("steady:1"), server.replicas("changed:1")
    with Load(server.http_port, "changed", 4) as load:
        write_model(models, "added")
        write_model(models, "changed", more="model_operations {}")
        (models / "changed" / "1" / "weights").write_bytes(b"1")
        wait_until(lambda: server.model_ready("added"), 30.0, "the new model serves")
        wait_until(lambda: server.replicas("changed:1@2") != [], 30.0, "the changed model is loaded anew")
        wait_until(lambda: set(old).isdisjoint(server.replicas("changed:1")), 30.0, "the old one goes")
    assert load.failures == []
    (models / "added").rename(models.parent / "elsewhere")
    wait_until(lambda: not server.model_ready("added"), 30.0, "the removed model is unloaded")
    assert server.replicas("steady:1") == steady
    with pytest.raises(InferenceServerException, match="if polling is enabled"):
        http.load_model("steady")


def test_stopped_under_load(server: Server) -> None:
    check_stop_under_load(server)
    assert "retries remaining" not in server.output(), "a message of Ray about its own end"


def test_model_that_fails_ends_the_program(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "broken", more="nonsense: 1")
    failing = ServeRun([f"--model-repository={tmp_path / 'models'}"], tmp_path / "log").start(wait=False)
    wait_until(failing.exited, 60.0, "the program ends")
    assert "start with --exit-on-error=false" in failing.output() and failing.stop() == 1
