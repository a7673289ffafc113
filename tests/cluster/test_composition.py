"""A Serve application of a user's own that calls models, in the cluster of a running server."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import tritonclient.http

from tests.server import ROOT, Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def cluster_address(server: Server) -> str:
    """Where the cluster that a server has started is reached."""
    assert server.process is not None
    for process in psutil.Process(server.process.pid).children(recursive=True):
        for argument in process.cmdline() if process.name() == "raylet" else ():
            if argument.startswith("--gcs-address="):
                return argument.split("=")[1]
    raise AssertionError("the server has no cluster of its own")


def test_the_example_calls_models(server: Server, repository: Path) -> None:
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    for model in ("simple", "square_int32"):
        shutil.copytree(ROOT / "model_repository" / model, repository / model)
        client.load_model(model)
    env = {"RAY_ADDRESS": cluster_address(server), "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    example = [sys.executable, str(ROOT / "examples" / "composition.py")]
    done = subprocess.run(example, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    added, squared, refused = done.stdout.splitlines()[-3:]
    assert added == str([number + 1 for number in range(16)])
    assert squared == "[3, 3, 3]"
    assert refused.startswith("('INVALID_ARG', ")
    for model in ("simple", "square_int32"):
        client.unload_model(model)
