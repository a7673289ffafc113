"""The fronts as the settings compose them, over a service that keeps what it is asked."""

import queue
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from app.core.observability.generation import GenerationFigures
from app.core.observability.live_settings import LiveSettings
from app.core.tensors import InferRequest, InferResponse, ParameterValue
from app.ingress.access.guard import Guard
from app.ingress.fronts import Parts, open_fronts
from app.ingress.net.slow_clients import SendBufferLimit
from app.ingress.tracing.observer import Observer
from app.settings.load import from_args
from app.transport.loops.thread import LoopThread
from tests.server import free_port
from tests.unit.app.http_fakes import FakeService

WAIT_S = 30.0


class RecordingService(FakeService):
    """Keeps the parameters of the requests it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.parameters: queue.SimpleQueue[dict[str, ParameterValue]] = queue.SimpleQueue()

    def answer(self, request: InferRequest) -> InferResponse:
        self.parameters.put(request.parameters)
        return super().answer(request)


async def no_metrics() -> bytes:
    return b""


class Running:
    """Fronts on a loop in a thread of its own."""

    def __init__(self, directory: Path, service: Any = None, guard: Guard | None = None, **args: Any) -> None:
        self.service = service or RecordingService()
        self.http_port, self.grpc_port = free_port(), free_port()
        ports = {"http_port": self.http_port, "grpc_port": self.grpc_port, "allow_metrics": False}
        settings = from_args({"model_repository": str(directory), **ports, **args})
        self.loop = LoopThread("fronts")
        self.generation = GenerationFigures()
        shared = Observer(LiveSettings()), SendBufferLimit(), guard, self.generation
        self._fronts = self.loop.call(open_fronts(Parts(settings, self.service, no_metrics, *shared)))
        self.http, self.grpc = f"127.0.0.1:{self.http_port}", f"127.0.0.1:{self.grpc_port}"

    def close(self) -> None:
        for front in self._fronts:
            self.loop.call(front.stop(0.2))
        self.loop.stop()


Fronts = Callable[..., AbstractContextManager[Running]]
"""Opens fronts with the settings given by name, over `service` if there is one."""


def tensor(module: Any, size: int = 4) -> Any:
    given = module.InferInput("INPUT0", [1, size], "FP32")
    given.set_data_from_numpy(np.zeros((1, size), np.float32))
    return given


def infer(client: Any, module: Any, **options: Any) -> Any:
    return client.infer("identity", [tensor(module)], **options).as_numpy("OUTPUT0").tolist()


def refusal(call: Any) -> Any:
    with pytest.raises(InferenceServerException) as refused:
        call()
    return refused.value.status(), refused.value.message()


ZEROS = [[0.0] * 4]
