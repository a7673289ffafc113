"""Texts that UTF-8 cannot encode, out of a model: the client is told, and no process ends of it."""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.cluster.conftest import write_python_model
from tests.server import Server

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""
MODEL = """
import json
import os
import triton_python_backend_utils as pb_utils

BAD = json.loads('"hi \\\\ud83d"')

class TritonPythonModel:
"""
RAISES = """
    def execute(self, requests):
        raise ValueError(BAD)
"""
OPENS = """
    def execute(self, requests):
        open(os.fsdecode(b"caf\\xe9"))
"""
ANSWERS = """
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=pb_utils.TritonError(BAD)) for _ in requests]
"""
AWAITS = """
    async def execute(self, requests):
        raise pb_utils.TritonModelException(BAD)
"""
SENDS = """
    def execute(self, requests):
        for request in requests:
            error = pb_utils.InferenceResponse(error=pb_utils.TritonError(BAD))
            request.get_response_sender().send(error, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLS = """
    def execute(self, requests):
        request = pb_utils.InferenceRequest(model_name=BAD, requested_output_names=["OUT"], inputs=[])
        raise ValueError(request.exec().error().message())
"""
WORKERS = "instance_group { kind: KIND_CPU count: 2 }"
DECOUPLED = "model_transaction_policy { decoupled: true }"
KINDS = {
    "raises": (RAISES, ""),
    "raises_elsewhere": (RAISES, WORKERS),
    "opens": (OPENS, ""),
    "answers": (ANSWERS, ""),
    "answers_elsewhere": (ANSWERS, WORKERS),
    "awaits": (AWAITS, ""),
    "sends": (SENDS, DECOUPLED),
    "sends_elsewhere": (SENDS, DECOUPLED + WORKERS),
    "calls": (CALLS, ""),
}


def load(server: Server, repository: Path, name: str, source: str, more: str = "") -> None:
    write_python_model(repository, name, CONFIG + more, MODEL + source)
    with tritonclient.http.InferenceServerClient(server.http_url, network_timeout=60) as client:
        client.load_model(name)


def told(server: Server, model: str) -> str:
    """The error of a request, over `generate`, which decoupled models have too."""
    request = urllib.request.Request(
        f"http://{server.http_url}/v2/models/{model}/generate", json.dumps({"IN": "x"}).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=20)
    with caught.value as answer:
        assert answer.code == 500
        return str(json.loads(answer.read())["error"])


@pytest.mark.parametrize("kind", KINDS)
def test_failure_with_a_hostile_text_reaches_the_client(server: Server, repository: Path, kind: str) -> None:
    load(server, repository, kind, *KINDS[kind])
    replicas = server.replicas(f"{kind}:1")
    for _ in range(3):
        assert ("caf\\udce9" if kind == "opens" else "hi \\ud83d") in told(server, kind)
    assert server.replicas(f"{kind}:1") == replicas
    assert server.model_ready(kind)


def test_failed_load_names_the_line_of_the_model(server: Server, repository: Path) -> None:
    source = "\n    def initialize(self, args):\n        raise ValueError(BAD)\n" + RAISES
    with pytest.raises(InferenceServerException) as caught:
        load(server, repository, "hostile_load", source)
    text = caught.value.message()
    assert "ValueError: hi \\ud83d\n" in text
    assert "hostile_load/1/model.py(11): initialize" in text
