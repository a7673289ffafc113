"""A Serve application of a user's own that calls models, in the cluster of a running server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http

from tests.cluster.conftest import write_ensemble
from tests.server import ROOT, Server, wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


def cluster_address(server: Server) -> str:
    """Where the cluster that a server has started is reached."""
    assert server.process is not None
    for process in psutil.Process(server.process.pid).children(recursive=True):
        for argument in process.cmdline() if process.name() == "raylet" else ():
            if argument.startswith("--gcs-address="):
                return str(argument.split("=")[1])
    raise AssertionError("the server has no cluster of its own")


ENSEMBLE_CALLS = """
import runpy, sys
import numpy as np
from nereid import InferError, model_handle

runpy.run_path(sys.argv[1], run_name="__main__")
composed = model_handle("composed")
print(composed.remote({"IN": np.arange(16, dtype=np.float32)[None]}).result()["OUT"].sum())
try:
    composed.remote({"IN": np.zeros((1, 16), np.int32)}).result()
except InferError as error:
    print(error.code, error.message)
"""


def test_the_example_calls_models(server: Server, repository: Path) -> None:
    """And an ensemble is called as they are."""
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    write_ensemble(repository, "composed")
    client.load_model("composed")
    for model in ("simple", "square_int32"):
        shutil.copytree(ROOT / "model_repository" / model, repository / model)
        client.load_model(model)
    env = {"RAY_ADDRESS": cluster_address(server), "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # the cluster is on 127.0.0.1
    example = [sys.executable, "-c", ENSEMBLE_CALLS, str(ROOT / "examples" / "composition.py")]
    done = subprocess.run(example, env={**os.environ, **env}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-4000:]
    added, squared, refused, summed, ensemble_refused = done.stdout.splitlines()[-5:]
    assert added == str([number + 1 for number in range(16)])
    assert squared == "[3, 3, 3]"
    assert refused.startswith("('INVALID_ARG', ")
    assert summed == "120.0"
    assert ensemble_refused.startswith("INVALID_ARG")
    assert "'IN' data-type is 'INT32', but model 'composed' expects 'FP32'" in ensemble_refused
    for model in ("composed", "simple", "square_int32"):
        client.unload_model(model)


REQUESTS = 24


def test_an_ensemble_counts_whichever_ingress_ran_it(server: Server, repository: Path) -> None:
    write_ensemble(repository, "counted")
    client = tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120)
    client.load_model("counted")
    row = tritonclient.http.InferInput("IN", [1, 16], "FP32")
    row.set_data_from_numpy(np.zeros((1, 16), np.float32))
    for _ in range(REQUESTS):  # a connection each, so that both ingresses have some
        with tritonclient.http.InferenceServerClient(server.http_url) as other:
            other.infer("counted", [row])

    def counts() -> set[bytes]:
        pages = [server.get("/metrics", port=server.metrics_port)[1] for _ in range(8)]
        found = [re.search(rb'nv_inference_count\{model="counted",version="1"\} (\d+)', p) for p in pages]
        statistics = [json.loads(server.get("/v2/models/counted/stats")[1]) for _ in range(8)]
        numbers = {str(each["model_stats"][0]["inference_count"]).encode() for each in statistics}
        return numbers | {match[1] if match else b"none" for match in found}

    wait_until(lambda: counts() == {b"%d" % REQUESTS}, 20.0, "every ingress tells of all requests")
    client.unload_model("counted")
