"""A packaged backend beside its framework alone: in a process each, or in this one if this Python has it."""

from __future__ import annotations

import subprocess
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from backends.registry.loading import ENVIRONMENT, SERVER
from benchmarks.backends import Call, Row, served
from deployments.environments.packaged import PackagedEnvironments

_DENSE: Final = """
    name: "dense" backend: "{backend}" max_batch_size: 8
    input {{ name: "x" data_type: TYPE_FP32 dims: {width} }}
    output {{ name: "y" data_type: TYPE_FP32 dims: 10 }}
    parameters {{ key: "num_threads" value {{ string_value: "1" }} }}
"""


class Dense(NamedTuple):
    """A model of dense layers; the last one has 10 outputs."""

    width: int
    layers: int


def dense_rows(backend: str, framework: str, sizes: Iterable[Dense], module: str = "") -> Iterable[Row]:
    """Return the rows of models, which `bare_BACKEND.py` makes in the folder that it is given.

    They run in a process of the backend's environment, or in this one if it has the framework's `module`.
    """
    here = bool(module) and find_spec(module) is not None
    if not here:
        check_installed(backend)
    for size in sizes:
        make = partial(_here if here else _apart, backend, size)
        place = ", in this process" if here else ""
        yield Row(f"{size.layers} layers of {framework}, 8 rows of {size.width}{place}", make)


def _apart(backend: str, size: Dense, folder: Path) -> tuple[Call, Call]:
    alone = bare(backend, f"bare_{backend}.py", folder, *size)
    return _served(backend, size, folder), alone


def _here(backend: str, size: Dense, folder: Path) -> tuple[Call, Call]:
    alone = import_module(f"benchmarks.backend_rows.bare_{backend}").prepared(folder, *size)
    return _served(backend, size, folder, {ENVIRONMENT: SERVER}), alone


def _served(backend: str, size: Dense, folder: Path, settings: Mapping[str, str] | None = None) -> Call:
    config, rows = _DENSE.format(backend=backend, width=size.width), np.ones((8, size.width), np.float32)
    return served(config, folder, {"x": rows}, settings=settings)


def check_installed(backend: str) -> None:
    """Raise ImportError unless the backend's environment is installed."""
    lease = PackagedEnvironments().lease(backend)
    if lease is None:
        raise ImportError(f"'nereid backends install {backend}' has not been run")
    lease.release()


def bare(backend: str, script: str, *arguments: object) -> Call:
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
