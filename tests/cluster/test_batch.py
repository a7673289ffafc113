"""`nereid batch` by actors of Ray Data, with files in S3, and `nereid.batch` on a dataset."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.clouds import BUCKET, S3
from tests.server import ROOT
from tests.unit.nereid.engine.repositories import add_model

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

CONFIG = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
PROGRAM = """
import sys
import nereid, ray

ray.init(log_to_driver=False)
rows = ray.data.from_items([{"id": n, "x": float(n)} for n in range(50)])
answers = nereid.batch(
    rows, repository=sys.argv[1], model="double", columns={"IN": "x"}, keep=["id"], batch_size=8, actors=2
)
print(sorted((row["id"], row["OUT"], row["error"]) for row in answers.iter_rows()) == [
    (n, 2.0 * n, None) for n in range(50)
])
"""


def run(arguments: list[str], **variables: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0", **variables}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_actors_write_what_one_process_writes(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=CONFIG)
    pq.write_table(pa.table({"IN": [float(n) for n in range(50)]}), tmp_path / "in.parquet")
    cloud = S3()
    cloud.start()
    try:
        cloud.put("in/rows.parquet", (tmp_path / "in.parquet").read_bytes())
        arguments = ["-m", "nereid", "batch", "--repository", str(tmp_path / "models"), "--model", "double"]
        arguments += ["--input", f"s3://{BUCKET}/models/in", "--block-rows", "8", "--json"]
        endpoint = f"http://127.0.0.1:{cloud.port}"
        variables = {**cloud.variables, "AWS_ENDPOINT_URL": endpoint}
        alone = run([*arguments, "--output", f"s3://{BUCKET}/one"], **variables)
        both = run([*arguments, "--output", str(tmp_path / "two"), "--actors", "2"], **variables)
        storage = fsspec.filesystem("s3", key="id", secret="secret", endpoint_url=endpoint)
        for part in ["_manifest.json", *(f"part-{number:06}.parquet" for number in range(7))]:
            assert (tmp_path / "two" / part).read_bytes() == storage.cat_file(f"{BUCKET}/one/{part}")
    finally:
        cloud.kill()
    assert [json.loads(each)["rows"] for each in (alone, both)] == [50, 50]


def test_stage_of_a_dataset(tmp_path: Path) -> None:
    add_model(tmp_path / "models", "double", config=CONFIG)
    assert run(["-c", PROGRAM, str(tmp_path / "models")]) == "True\n"
