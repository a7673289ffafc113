"""A framework alone in a process of its packaged environment, as the backend's is."""

from __future__ import annotations

import subprocess
import weakref
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.backends import Call, Row, served
from deployments.environments.packaged import PackagedEnvironments

_DENSE = """
    name: "dense" backend: "{backend}" max_batch_size: 8
    input {{ name: "x" data_type: TYPE_FP32 dims: 256 }}
    output {{ name: "y" data_type: TYPE_FP32 dims: 10 }}
    parameters {{ key: "num_threads" value {{ string_value: "1" }} }}
"""


def dense_rows(backend: str, framework: str) -> Iterable[Row]:
    """Return the row of a small model, which `bare_BACKEND.py` makes in the folder that it is given."""

    def both(folder: Path) -> tuple[Call, Call]:
        alone = bare(backend, f"bare_{backend}.py", folder)
        return served(_DENSE.format(backend=backend), folder, {"x": np.ones((8, 256), np.float32)}), alone

    check_installed(backend)
    yield Row(f"two layers of {framework}, 8 rows", both)


def check_installed(backend: str) -> None:
    """Raise ImportError unless the backend's environment is installed."""
    lease = PackagedEnvironments().lease(backend)
    if lease is None:
        raise ImportError(f"'nereid backends install {backend}' has not been run")
    lease.release()


def bare(backend: str, script: str, *arguments: Path) -> Call:
    """Start a script of this folder that runs its model for each line it reads, and then writes one.

    A call so costs two context switches more than the framework alone, some 50 microseconds.
    """
    lease = PackagedEnvironments().lease(backend)
    assert lease is not None
    python = lease.directory / "bin" / "python"
    command = [str(each) for each in (python, "-sP", Path(__file__).with_name(script), *arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    requests, replies = process.stdin, process.stdout
    assert requests is not None and replies is not None

    def call() -> None:
        requests.write("\n")
        assert replies.readline() == "\n", "the process has ended"

    assert replies.readline() == "\n", "the process has not started"
    weakref.finalize(call, process.kill)
    weakref.finalize(call, lease.release)
    return call
