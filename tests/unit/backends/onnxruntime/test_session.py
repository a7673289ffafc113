"""Calls of a session."""

from pathlib import Path

import numpy as np
import onnxruntime

from backends.onnxruntime.session import run_of
from tests.unit.backends.onnxruntime.test_backend import identity


def test_checks_in_python_are_left_out_on_the_cpu_alone(tmp_path: Path) -> None:
    """Another provider may fail and be replaced, which the public `run` does."""
    path = identity(tmp_path) / "1" / "model.onnx"

    base = onnxruntime.InferenceSession
    other = type("Other", (base,), {"get_providers": lambda self: ["Other", "CPUExecutionProvider"]})
    sessions = [kind(path, providers=["CPUExecutionProvider"]) for kind in (base, other)]
    assert [run_of(session) == session.run for session in sessions] == [False, True]
    ones = np.ones((1, 16), np.float32)
    for session in sessions:
        assert np.array_equal(run_of(session)(["O"], {"I": ones}, None)[0], ones)
