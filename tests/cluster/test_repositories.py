"""Repositories on a real server: models from a load request, from S3, and from two clouds at a time."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.clouds import Gcs, tokens
from tests.cluster.conftest import CONFIG
from tests.cluster.given_model import MODEL, OVERRIDE, constant
from tests.cluster.load import Load
from tests.server import Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SKY = """
platform: "ensemble"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
ensemble_scheduling { step {
  model_name: "remote" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" }
  output_map { key: "OUTPUT0" value: "OUTPUT0" }
} }
"""


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Gcs]:
    """Google's storage with one model that is called as the one in S3."""
    with tokens() as (token_uri, _):
        cloud = Gcs(tmp_path, token_uri)
        try:
            cloud.start()
            cloud.put("remote/config.pbtxt", CONFIG.format(delay=0, more="").encode())
            cloud.put("remote/1/weights", b"1")
            cloud.put("sky/config.pbtxt", SKY.encode())
            cloud.put("sky/1/readme", b"an ensemble")
            yield cloud
        finally:
            cloud.kill()


def test_models_of_requests_and_of_s3(server: Server, cache: Path, private: Path) -> None:
    http = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    http.load_model("remote")
    with Load(server.http_port, "remote", 2) as load:
        wait_until(lambda: len(load.answers) > 50, 20.0, "fifty answers of the model in S3")
    assert load.failures == []
    assert [path.read_bytes() for path in cache.rglob("1/weights")] == [b"1"]
    http.unload_model("remote")
    http.load_model("given", config=OVERRIDE, files={"file:1/model.py": MODEL % 7})
    assert constant(http, "given") == 7
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as grpc:
        grpc.load_model("given", config=OVERRIDE, files={"file:1/model.py": MODEL % 8})
        assert constant(http, "given") == 8
        with pytest.raises(InferenceServerException, match="must stay within model directory"):
            grpc.load_model("given", config=OVERRIDE, files={"file:../x/model.py": b""})
    manager = server.replicas("nereid:repository-manager")
    os.kill(manager[0], signal.SIGKILL)
    replica = server.replicas("given:1@2")
    os.kill(replica[0], signal.SIGKILL)
    wait_until(lambda: server.replicas("given:1@2") not in ([], replica), 60.0, "a new replica")
    wait_until(lambda: server.model_ready("given"), 60.0, "it serves")
    assert constant(http, "given") == 8, "the files survived the manager and the replica"
    http.unload_model("given")
    wait_until(lambda: list(private.rglob("overrides/*/given")) == [], 30.0, "its files are gone")


@pytest.mark.slow
def test_namespaces_in_two_clouds(storage: str, google: Gcs, tmp_path: Path) -> None:
    arguments = [
        f"--model-repository={storage}",
        f"--model-repository={google.url}",
        "--model-namespacing=true",
        f"--model-cache-directory={tmp_path / 'cache'}",
    ]
    server = Server(arguments, tmp_path / "log", google.variables).start()
    try:
        http = tritonclient.http.InferenceServerClient(server.http_url)
        names = {model["name"] for model in http.get_model_repository_index()}
        assert names == {f"{storage}::remote", f"{google.url}::remote", f"{google.url}::sky"}
        tensor = tritonclient.http.InferInput("INPUT0", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
        answer = http.infer("sky", [tensor])
        assert answer.get_response()["model_name"] == "sky"
        with pytest.raises(InferenceServerException, match="There are 2 identifiers of model 'remote'"):
            http.infer("remote", [tensor])
        assert http.get_model_config("sky")["ensemble_scheduling"]["step"][0]["model_namespace"] == google.url
        metrics = server.get("/metrics", port=server.metrics_port)[1].decode()
        sample = f'nv_inference_count{{model="remote",namespace="{google.url}",version="1"}} 1'
        assert sample in metrics.splitlines()
    finally:
        server.stop()
