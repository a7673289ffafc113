"""Writing Python models for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.backend_harness import Served, infer

HEAD = """
import asyncio
import json
import threading
import numpy as np
import triton_python_backend_utils as pb_utils
"""
IDENTITY = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "I")
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("O", tensor.as_numpy())]))
        return responses
"""
FINAL = "flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL"

Load = Callable[..., Served]


def text(kind: str = "TYPE_FP32", extra: str = "") -> str:
    return f"""
        name: "m" backend: "python" max_batch_size: 8
        input {{ name: "I" data_type: {kind} dims: -1 }}
        output {{ name: "O" data_type: {kind} dims: -1 }} {extra}
    """


DECOUPLED = text(extra="model_transaction_policy { decoupled: true }")


def write(folder: Path, source: str) -> Path:
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "1" / "model.py").write_text(HEAD + source)
    return folder


def execute(body: str, **functions: str) -> str:
    """A model whose `execute` has this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"class TritonPythonModel:\n    def execute(self, requests):\n{lines}\n"


def row(*values: float) -> Any:
    return infer({"I": np.array([values], np.float32)}, id="9")


def failure(served: Served, *requests: Any) -> str:
    call, *_ = served(*(requests or [row(1)]))
    prefix = "Failed to process the request(s) for model 'm_0_0', message: "
    assert call.error.startswith(prefix)
    return call.error.removeprefix(prefix)
