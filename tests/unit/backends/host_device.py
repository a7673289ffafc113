"""Stands for a GPU where there is none: `CudaDevice` over memory of this process."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from backends.base import Instance
from backends.cuda.device import CudaDevice, pins
from backends.cuda.host_buffers import HostBuffers


class HostDevice(CudaDevice):
    """Counts what is asked of it; a recorded execution is executed again."""

    kind = "cpu"
    stream = 7

    def __init__(self, instance: Instance) -> None:
        optimization = instance.model.config.optimization
        self.index = 0  # of this process's memory there is one
        self.device = torch.device("cpu", instance.device_id)
        pinned = pins(optimization, "input_pinned_memory")
        self.inputs = HostBuffers(lambda nbytes: np.empty(nbytes, np.uint8)) if pinned else None
        self._pins_outputs = False
        self.waits = self.recorded = self.replayed = 0

    def current(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def wait(self) -> None:
        self.waits += 1

    def synchronize(self) -> None:
        pass

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            enqueue()

        return replay
