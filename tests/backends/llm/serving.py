"""Requests to a served language model, and its texts."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from app.core.tensors import InferRequest, InferResponse
from tests.unit.backend_harness import Call, Served, infer

TOKENS = 40
Load = Callable[..., Served]


def asked(served: Served, parameters: dict[str, Any] | None = None, **inputs: Any) -> Call:
    """Start one request of any inputs."""
    sampling = {"temperature": 0, "max_tokens": TOKENS, **(parameters or {})}
    texts = {**inputs, "sampling_parameters": json.dumps(sampling)}
    return served(
        infer(
            {
                name: np.array([given], np.object_ if isinstance(given, str) else None)
                for name, given in texts.items()
            }
        )
    )[0]


def ask(served: Served, prompt: str, parameters: dict[str, Any] | None = None, **inputs: bool) -> Call:
    """Start one request; see `text_request`."""
    return served(text_request(prompt, parameters, **inputs))[0]


def text_request(prompt: str, parameters: dict[str, Any] | None = None, **inputs: bool) -> InferRequest:
    """Return a request; for the most probable text unless `parameters` say otherwise."""
    sampling = {"temperature": 0, "max_tokens": TOKENS, **(parameters or {})}
    arrays = {name: np.array([value]) for name, value in inputs.items()}
    arrays["text_input"] = np.array([prompt], np.object_)
    arrays["sampling_parameters"] = np.array([json.dumps(sampling)], np.object_)
    return infer(arrays)


def outputs(response: InferResponse) -> dict[str, Any]:
    assert response.failure is None, response.failure
    values = {tensor.name: tensor.array().item() for tensor in response.outputs}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def text_of(call: Call) -> str:
    return "".join(outputs(response)["text_output"] for response in call.wait())
