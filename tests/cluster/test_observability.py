"""Settings and traces of a whole server: two ingresses on one port, replicas in processes of their own."""

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families

from tests.server import ROOT, Server, wait_until

pytestmark = pytest.mark.cluster
MODEL = "identity_fp32"
REPLICA = (
    "REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START",
    "COMPUTE_END", "REQUEST_END",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def traced(server: Server, repository: Path) -> Iterator[None]:
    """Only this model is traced, and only here."""
    shutil.copytree(ROOT / "model_repository" / MODEL, repository / MODEL)
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        client.load_model(MODEL)
        client.update_trace_settings(MODEL, {"trace_level": ["TIMESTAMPS"]})
        yield
        client.update_trace_settings(MODEL, {"trace_level": None})
        client.unload_model(MODEL)


def ask(server: Server, path: str, document: dict[str, Any] | None = None) -> dict[str, Any]:
    """On a connection of its own: the kernel chooses the ingress."""
    body = None if document is None else json.dumps(document).encode()
    asked = urllib.request.Request(f"http://{server.http_url}{path}", data=body)
    with urllib.request.urlopen(asked, timeout=30) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return answer


def test_a_change_reaches_every_ingress(server: Server) -> None:
    for level in (1, 0):
        assert ask(server, "/v2/logging", {"log_verbose_level": level})["log_verbose_level"] == level
        assert {ask(server, "/v2/logging")["log_verbose_level"] for _ in range(16)} == {level}
    ask(server, f"/v2/models/{MODEL}/trace/setting", {"trace_rate": "2"})
    assert {ask(server, f"/v2/models/{MODEL}/trace/setting")["trace_rate"] for _ in range(16)} == {"2"}
    ask(server, f"/v2/models/{MODEL}/trace/setting", {"trace_rate": None})


TALKATIVE = b"""
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_verbose("executing")
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""


def test_a_change_reaches_the_replicas(server: Server) -> None:
    config = """{"backend": "python", "max_batch_size": 8,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [4]}]}"""
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=120) as client:
        client.load_model("talkative", config=config, files={"file:1/model.py": TALKATIVE})
        infer(server, tritonclient.http, server.http_url, "", "talkative")
        assert '"executing"' not in server.output()
        client.update_log_settings({"log_verbose_level": 1})
        infer(server, tritonclient.http, server.http_url, "", "talkative")
        wait_until(lambda: '"executing"' in server.output(), 20.0, "the model's verbose line")
        client.update_log_settings({"log_verbose_level": 0})
        client.unload_model("talkative")


def infer(server: Server, module: Any, url: str, request_id: str, model: str = MODEL) -> None:
    with module.InferenceServerClient(url) as client:
        tensor = module.InferInput("INPUT0", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
        client.infer(model, [tensor], request_id=request_id)


def traces(directory: Path) -> dict[str, dict[str, int]]:
    """Timestamps by request id."""
    found = {}
    for path in directory.glob("trace.json.*"):
        objects = json.loads(path.read_bytes())
        found[objects[0].get("request_id", "")] = {
            stamp["name"]: stamp["ns"] for each in objects for stamp in each.get("timestamps", ())
        }
    return found


def test_traces_cover_ingress_and_replica(server: Server, trace_directory: Path) -> None:
    infer(server, tritonclient.http, server.http_url, "over-http")
    infer(server, tritonclient.grpc, server.grpc_url, "over-grpc")
    wait_until(
        lambda: {"over-http", "over-grpc"} <= traces(trace_directory).keys(), 5, "both traces are saved"
    )
    for request_id, first, last in (
        ("over-http", "HTTP_RECV_START", "HTTP_SEND_END"),
        ("over-grpc", "GRPC_WAITREAD_START", "GRPC_SEND_END"),
    ):
        stamps = traces(trace_directory)[request_id]
        times = [stamps[name] for name in (first, *REPLICA, "INFER_RESPONSE_COMPLETE", last)]
        assert times == sorted(times)


def test_metrics(server: Server) -> None:
    infer(server, tritonclient.http, server.http_url, "")
    _, body = server.get("/metrics", port=server.metrics_port)
    families = {family.name: family.samples for family in text_string_to_metric_families(body.decode())}
    summaries = [s for s in families["nv_inference_request_summary_us"] if s.labels["model"] == MODEL]
    assert next(s for s in summaries if s.name.endswith("_count")).value >= 1
    loads = [s for s in families["nv_model_load_duration_secs"] if s.labels["model"] == MODEL]
    assert loads[0].value > 0
    assert families["nv_cpu_memory_total_bytes"][0].value > families["nv_cpu_memory_used_bytes"][0].value


def test_request_lines(server: Server) -> None:
    ask(server, "/v2/logging", {"log_verbose_level": 1})
    infer(server, tritonclient.http, server.http_url, "to-be-logged")
    wait_until(lambda: '"to-be-logged"' in server.output(), 5, "the line is written")
    ask(server, "/v2/logging", {"log_verbose_level": 0})
    line = next(line for line in server.output().splitlines() if '"to-be-logged"' in line)
    record = json.loads(line[line.index('{"event"') : line.rindex("}") + 1])
    assert (record["model"], record["version"], record["status"]) == (MODEL, "1", "OK")
    assert record["total_us"] >= record["queue_us"] + record["compute_infer_us"]
