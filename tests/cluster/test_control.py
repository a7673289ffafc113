"""Loading, reloading and unloading while requests flow."""

import os
import time
from pathlib import Path

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_model, write_python_model
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def client(server: Server) -> tritonclient.http.InferenceServerClient:
    return tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)


def test_reload_fails_no_request(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    old = server.replicas("steady:1")
    with Load(server.http_port, "steady", 8) as load:
        time.sleep(0.5)
        os.utime(write_model(repository, "steady") / "config.pbtxt")
        (repository / "steady" / "1" / "weights").write_bytes(os.urandom(8))
        client.load_model("steady")
        time.sleep(0.5)
    assert load.failures == []
    assert len(load.answers) > 100
    wait_until(lambda: set(old).isdisjoint(server.replicas("steady:1")), 30.0, "the old replica goes")


def test_load_of_what_is_unchanged_does_nothing(
    server: Server, client: tritonclient.http.InferenceServerClient
) -> None:
    before = server.replicas("victim:1")
    client.load_model("victim")
    assert server.replicas("victim:1") == before


def test_failed_reload_keeps_the_old_version(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_model(repository, "fragile")
    client.load_model("fragile")
    (repository / "fragile" / "config.pbtxt").write_text('backend: "nonesuch"\n')
    with Load(server.http_port, "fragile", 2) as load:
        with pytest.raises(InferenceServerException, match="unable to find backend library"):
            client.load_model("fragile")
        time.sleep(0.3)
    assert load.failures == []
    client.unload_model("fragile")


def test_failed_load_says_why(server: Server, client: tritonclient.http.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("broken")
    assert caught.value.status() == "400"
    assert "load failed for model 'broken': version 1 is at UNAVAILABLE state: " in caught.value.message()
    assert "unable to find backend library for backend 'nonesuch'" in caught.value.message()
    index = {m["name"]: m for m in client.get_model_repository_index()}
    assert index["broken"]["state"] == "UNAVAILABLE"
    assert client.is_model_ready("steady")
    assert not server.ready(), "a model that failed to load makes the server unready"
    client.unload_model("broken")
    assert server.ready()


def test_load_of_an_unknown_model(client: tritonclient.http.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model("nowhere")
    assert caught.value.status() == "500"
    assert caught.value.message() == "failed to load 'nowhere', failed to poll from model repository"


def test_unload_and_load_again(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    write_model(repository, "guest")
    client.load_model("guest")
    assert client.is_model_ready("guest")
    client.unload_model("guest")
    assert not client.is_model_ready("guest")
    client.unload_model("guest")  # a second time is no error
    row = next(m for m in client.get_model_repository_index() if m["name"] == "guest")
    assert (row["state"], row["reason"]) == ("UNAVAILABLE", "unloaded")
    assert server.ready(), "a deliberate unload does not make the server unready"
    client.load_model("guest")
    assert client.is_model_ready("guest")
    client.unload_model("guest")


def test_versions_follow_the_policy(
    server: Server, repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    directory = write_model(repository, "many", more="version_policy { specific { versions: [ 1, 3 ] } }")
    for version in (2, 3):
        (directory / str(version)).mkdir(exist_ok=True)
    client.load_model("many")
    assert client.get_model_metadata("many")["versions"] == ["1", "3"]
    write_model(repository, "many", more="version_policy { latest { num_versions: 1 } }")
    client.load_model("many")
    assert client.get_model_metadata("many")["versions"] == ["3"]
    client.unload_model("many")


LOADING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model("{other}")

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


def write_loading_model(repository: Path, name: str, other: str) -> None:
    write_python_model(repository, name, 'backend: "python"', LOADING.format(other=other))


def test_models_that_load_each_other(
    repository: Path, client: tritonclient.http.InferenceServerClient
) -> None:
    """They end in an error that tells the circle; one that loads what loads nothing is loaded with it."""
    write_loading_model(repository, "hen", "egg")
    write_loading_model(repository, "egg", "hen")
    with pytest.raises(InferenceServerException, match="circular load of models: hen -> egg -> hen"):
        client.load_model("hen")
    write_model(repository, "nest")
    write_loading_model(repository, "bird", "nest")
    client.load_model("bird")
    assert client.is_model_ready("bird") and client.is_model_ready("nest")
    for name in ("hen", "egg", "bird", "nest"):
        client.unload_model(name)
