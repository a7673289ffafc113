"""The first use of OpenVINO's tables of types in a process, by several threads."""

import subprocess
import sys

import pytest

pytest.importorskip("openvino")

PROGRAM = """
import os, sys, threading
import numpy as np
import openvino as ov
from openvino import opset1
from backends.openvino.runtime import core

sys.setswitchinterval(1e-6)
core()
parameter = opset1.parameter([1, 4], np.float32, name="x")
model = ov.Model([opset1.relu(parameter)], [parameter], "m")
together = threading.Barrier(8)

def ask():
    together.wait()
    model.inputs[0].get_element_type().to_dtype()

threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
os._exit(0)
"""


@pytest.mark.parametrize("_", range(3))
def test_threads_do_not_wait_for_each_other(_: int) -> None:
    """Without the tables that `core` makes, this hangs every second time."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
