"""OpenVINO's reports of its use, which `import openvino` sends where the package for them is installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("statement", "reports"),
    [
        ("import openvino", True),  # or this would prove nothing of the others
        ("import backends.openvino.backend", False),
        ("from backends.openvino.network import read_file", False),  # of backends.onnxruntime.accelerator
    ],
)
def test_import_reports_nothing(tmp_path: Path, statement: str, reports: bool) -> None:
    (tmp_path / "openvino_telemetry.py").write_text("open('reported', 'w').close(); raise ImportError")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    subprocess.run(
        [sys.executable, "-c", statement], cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, check=True
    )
    assert (tmp_path / "reported").exists() is reports
