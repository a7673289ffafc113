"""What a console reads of a running server: figures of all versions, traces with their calls, settings."""

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.conftest import Addresses
from tests.contract.drivers import Driver, Input
from tests.waiting import block_until

PICTURE = Path(__file__).parent.parent / "data" / "cat.jpg"
ENSEMBLE = "efficientnet_ensemble"


class Connection:
    """One connection, so that of several ingresses the same one answers."""

    def __init__(self, address: str) -> None:
        self._http = http.client.HTTPConnection(address, timeout=60)

    def ask(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
        self._http.request("GET" if body is None else "POST", path, body, headers or {})
        answer = self._http.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content[: int(answer.headers.get("Inference-Header-Content-Length", len(content)))])

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def connection(server: Addresses) -> Iterator[Connection]:
    made = Connection(server.http)
    yield made
    made.close()


def counted(connection: Connection, model: str) -> int:
    rows = connection.ask("/v2/nereid/overview")["versions"]
    return sum(row["figures"]["ok"] for row in rows if row["model"] == model and row["figures"])


def test_overview_counts_requests_of_every_protocol(client: Driver, connection: Connection) -> None:
    before = counted(connection, "identity_fp32")
    client.infer("identity_fp32", [Input("INPUT0", np.zeros((1, 4), np.float32), "FP32")])
    block_until(lambda: counted(connection, "identity_fp32") > before, "was not counted")


def test_overview_has_only_what_changed(connection: Connection) -> None:
    first = connection.ask("/v2/nereid/overview")
    states = {row["model"]: (row["state"], row["replicas"]) for row in first["versions"]}
    assert states["simple"] == ("READY", 1) and states[ENSEMBLE][0] == "READY"
    assert {row["kind"] for row in first["versions"] if row["model"] == ENSEMBLE} == {"ensemble"}
    block_until(lambda: len(changed(connection, first["cursor"])) < len(first["versions"]), "all were sent")


def changed(connection: Connection, cursor: str) -> list[Any]:
    found: list[Any] = connection.ask(f"/v2/nereid/overview?after={cursor}")["versions"]
    return found


def test_traces_have_the_steps_of_an_ensemble(connection: Connection) -> None:
    def traced() -> list[str]:
        connection.ask("/v2/nereid/traces")
        raw = {"Inference-Header-Content-Length": "0"}
        connection.ask(f"/v2/models/{ENSEMBLE}/infer", PICTURE.read_bytes(), raw)
        traces = connection.ask("/v2/nereid/traces")["traces"]
        spans = [trace["spans"] for trace in traces if trace["spans"][0]["model"] == ENSEMBLE]
        return [span["model"] for span in spans[-1]] if spans else []

    block_until(lambda: traced() == [ENSEMBLE, "image_preprocess", "efficientnet_lite0_onnx"], "no trace")


def test_server_tells_its_settings(connection: Connection, server: Addresses) -> None:
    found = connection.ask("/v2/nereid/server")
    flags = {each["flag"]: each["value"] for each in found["settings"]}
    assert flags["--http-port"] == server.http.rpartition(":")[2]
    assert found["machine"]["nv_cpu_memory_total_bytes"][0]["value"] > 0
    assert all(line["number"] > 0 for line in connection.ask("/v2/nereid/logs")["lines"])
