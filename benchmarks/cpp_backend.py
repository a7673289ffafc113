"""Triton's identity backend (C++, unmodified) beside ours in Python, executed without a server, in turn.

    python -m benchmarks.cpp_backend libtriton_identity.so

A figure is the CPU time of this process for an execution of the batch, from requests to responses; the ratio
is the median of the rounds. Ours returns the memory of its input; Triton's copies it.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, InferResponse, Tensor
from backends.base import Backend, Instance, Model, Request
from backends.cpp.backend import library_backend
from backends.teaching.identity import IdentityBackend

_CONFIG: Final = """
    name: "identity" backend: "identity" max_batch_size: 64
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
"""
_CASES: Final = ((1, 16), (8, 16), (1, 1 << 18))
"""Requests of a batch, and FP32 values of each."""
_ROUNDS: Final = 15
_ROUND_S: Final = 0.05


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library", type=Path, help="libtriton_identity.so")
    library: Path = parser.parse_args().library.absolute()
    kinds = (library_backend("identity", library), IdentityBackend)
    print("| batch | C++, us | Python, us | ratio |\n|---|---|---|---|")
    for count, size in _CASES:
        calls = [_execution(kind, count, size) for kind in kinds]
        rounds = [[_measure(call) for call in calls] for _ in range(_ROUNDS)]
        cpp, python = (median(column) * 1e6 for column in zip(*rounds, strict=True))
        ratio = median(first / second for first, second in rounds)
        print(f"| {count} x FP32[{size}] | {cpp:.1f} | {python:.1f} | {ratio:.2f} |")


def _execution(kind: type[Backend], count: int, size: int) -> Callable[[], None]:
    model = Model(text_format.Parse(_CONFIG, mc.ModelConfig()), 1, Path("nowhere"))
    backend, instance = kind(), Instance(model, "identity_0_0")
    backend.initialize({})
    backend.model_initialize(model)
    backend.instance_initialize(instance)
    tensor = Tensor.from_array("INPUT0", np.ones((1, size), np.float32))
    infer = InferRequest("identity", "", (tensor,))

    def execute() -> None:
        requests: Sequence[Request] = [Request(infer, _receive, lambda: False) for _ in range(count)]
        backend.instance_execute(instance, requests)

    return execute


def _receive(response: InferResponse) -> None:
    response.raise_error()


def _measure(call: Callable[[], None]) -> float:
    began, calls = time.process_time(), 0
    while (spent := time.process_time() - began) < _ROUND_S:
        call()
        calls += 1
    return spent / calls


if __name__ == "__main__":
    main()
