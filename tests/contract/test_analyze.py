"""`nereid analyze` and a server."""

import json
import os
from pathlib import Path

import pytest

from nereid.commands.analyze import main
from nereid_client import connect
from tests.contract.conftest import Addresses
from tests.server import Server

CONFIG = """
backend: "identity"
max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 16 ] }
parameters { key: "execute_delay_ms" value { string_value: "30" } }
instance_group { count: 1 kind: KIND_CPU }
"""
"""A model that takes 30 ms for a batch of any size: the larger the better."""


@pytest.mark.parametrize("model", ["simple", "efficientnet_ensemble"])
def test_server_that_loads_nothing_on_request(
    server: Addresses, capsys: pytest.CaptureFixture[str], tmp_path: Path, model: str
) -> None:
    words = ("-m", model, "-u", server.http, "--slo", "p99<50ms", "--output", str(tmp_path))
    assert main(words) == 1
    assert "--model-control-mode=explicit" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_search_finds_batches_and_leaves_files_and_server_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "models" / "sleeper"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(CONFIG)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "models").rglob("*")}
    arguments = [f"--model-repository={tmp_path / 'models'}", "--model-control-mode=explicit"]
    server = Server([*arguments, "--load-model=sleeper"], tmp_path / "log").start()
    try:
        words = [
            "-m",
            "sleeper",
            "-u",
            server.http_url,
            "--slo",
            "p99<150ms",
            "--output",
            str(tmp_path / "out"),
        ]
        axes = ["--batches", "1,8", "--delays", "0", "--instances", "1", "--rounds", "1", "--candidates", "2"]
        with connect(f"http://{server.http_url}") as connected:
            config = connected.model("sleeper").described()[1]
            assert main([*words, *axes, "--json"]) == 0
            assert connected.model("sleeper").described()[1] == config
    finally:
        server.stop()
    found = json.loads(capsys.readouterr().out)
    assert found["best"]["batch"] == 8 and found["rate"] > 100 and min(found["ratios"]) > 1.5
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "models").rglob("*")}
    assert "max_batch_size: 8" in (tmp_path / "out" / "config.pbtxt").read_text()
    assert os.path.getsize(tmp_path / "out" / "report.html") > 1000
