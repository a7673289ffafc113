"""Loading a model by its backend and executing requests, without a scheduler."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as mc

from app.core.tensors import InferRequest, InferResponse, RequestedOutput, Tensor
from backends.base import Backend, Instance, Model, Request


def config(text: str) -> mc.ModelConfig:
    """Parse a configuration."""
    return text_format.Parse(text, mc.ModelConfig())


def infer(arrays: Mapping[str, Any], outputs: Sequence[str] = (), **fields: Any) -> InferRequest:
    """A request of these arrays; a value may be a ready tensor."""
    tensors = tuple(
        value if isinstance(value, Tensor) else Tensor.from_array(name, np.asarray(value))
        for name, value in arrays.items()
    )
    requested = tuple(RequestedOutput(name) for name in outputs)
    return InferRequest("m", "", tensors, requested, **fields)


class Call(Request):
    """A request that keeps its responses."""

    def __init__(self, request: InferRequest) -> None:
        super().__init__(request, self._keep, lambda: self.cancelled)
        self.cancelled = False
        self.responses: list[InferResponse] = []
        self.finished = threading.Event()

    def _keep(self, response: InferResponse) -> None:
        self.responses.append(response)
        if response.final:
            self.finished.set()

    def wait(self) -> list[InferResponse]:
        """All responses, once the final one is there."""
        assert self.finished.wait(60)
        return self.responses

    @property
    def arrays(self) -> dict[str, Any]:
        """The outputs of the only response."""
        (response,) = self.wait()
        assert response.failure is None, response.failure
        return {tensor.name: tensor.array() for tensor in response.outputs}

    @property
    def error(self) -> str:
        """The text of the only response's error."""
        (response,) = self.wait()
        assert response.failure is not None
        return response.failure.message


class Served:
    """A loaded model with one instance."""

    def __init__(
        self,
        backend_class: type[Backend],
        configuration: mc.ModelConfig | Model,
        directory: Path = Path("nowhere"),
        settings: Mapping[str, str] | None = None,
        interpreter: Path | None = None,
        **instance: Any,
    ) -> None:
        self.backend = backend_class()
        ready = isinstance(configuration, Model)
        self.model = configuration if ready else Model(configuration, 1, directory, settings)
        if not ready:
            self.model.interpreter = interpreter
        self.instance = Instance(self.model, f"{configuration.name}_0_0", **instance)
        self.backend.initialize(self.model.backend_config)
        self.backend.model_initialize(self.model)
        self.backend.instance_initialize(self.instance)

    def __call__(self, *requests: InferRequest) -> list[Call]:
        """Execute the requests as one batch."""
        calls = [Call(request) for request in requests]
        self.backend.instance_execute(self.instance, calls)
        return calls

    def close(self) -> None:
        """Finalize everything, in the order of the life cycle."""
        self.backend.instance_finalize(self.instance)
        self.backend.model_finalize(self.model)
        self.backend.finalize()
