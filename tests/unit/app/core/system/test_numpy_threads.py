"""The threads of numpy's library, in a process of its own."""

import os
import subprocess
import sys

from tests.server import ROOT

PROGRAM = """
import ctypes, os
import numpy
from app.core.system.numpy_threads import follow_variable
os.environ["OMP_NUM_THREADS"] = "2"
follow_variable()
print(ctypes.CDLL(numpy._core._multiarray_umath.__file__).scipy_openblas_get_num_threads64_())
"""


def test_a_library_that_is_loaded_already_follows_the_variable() -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("OPENBLAS_NUM_THREADS", None)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2\n"
