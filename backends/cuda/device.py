"""A GPU as one instance of a model uses it, through PyTorch: a stream, copies, events and graphs."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import unsupported
from app.core.installation import install_command
from backends.base import Instance
from backends.cuda.host_buffers import HostBuffers

Array = npt.NDArray[Any]

_cuda: Any = torch.cuda  # not typed

LOADING: Final = threading.RLock()
"""Held by an instance while it loads and records graphs: another's allocations could end a recording."""


class CudaDevice:
    """What an instance does on its GPU happens on one stream of its own, in order.

    `optimization` of the configuration decides: `input_pinned_memory` and `output_pinned_memory` whether host
    memory is page-locked, so that copies need not wait for each other; `cuda.busy_wait_events` whether a
    waiting thread spins; `priority` the stream's.

    Attributes:
        kind: what frameworks call such a device.
        index: CUDA ordinal.
        inputs: where merged inputs go; None when the configuration wants none of it.

    Raises:
        InferError: UNSUPPORTED where there is no such GPU.
    """

    kind = "cuda"

    def __init__(self, instance: Instance) -> None:
        optimization = instance.model.config.optimization
        self.index = instance.device_id
        self.device = cuda_device(instance)
        self.inputs = HostBuffers(_pinned) if pins(optimization, "input_pinned_memory") else None
        self._pins_outputs = pins(optimization, "output_pinned_memory")
        first = optimization.priority == mc.ModelOptimizationPolicy.PRIORITY_MAX
        self._stream = _cuda.Stream(self.device, priority=-1 if first else 0)
        self._done = _cuda.Event(blocking=not optimization.cuda.busy_wait_events)

    @property
    def stream(self) -> int:
        """The stream's handle (cudaStream_t)."""
        return int(self._stream.cuda_stream)

    def current(self) -> AbstractContextManager[Any]:
        """Within it PyTorch works on this device and stream."""
        context: AbstractContextManager[Any] = _cuda.stream(self._stream)
        return context

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Device memory, uint8[nbytes], aligned to 256 bytes or better."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def stage(self, name: str, array: Array) -> torch.Tensor:
        """The bytes of an input, uint8[n], in the host memory that copies to the device start from."""
        held = np.ascontiguousarray(array) if self.inputs is None else self.inputs.hold(name, array)
        return torch.from_numpy(held.reshape(-1).view(np.uint8))

    def upload(self, name: str, array: Array, target: torch.Tensor) -> None:
        """Start to copy an input to the first bytes of device memory."""
        if array.nbytes:
            target[: array.nbytes].copy_(self.stage(name, array), non_blocking=True)

    def download(self, source: torch.Tensor) -> torch.Tensor:
        """Start to copy a tensor to host memory of its own; it is there after `wait`.

        PyTorch keeps page-locked blocks for the next time, and gives one out when its last reader, a
        response, is gone.
        """
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=self._pins_outputs)
        return host.copy_(source, non_blocking=True)

    def wait(self) -> None:
        """Wait for all that was started on the stream; the GIL is free meanwhile."""
        self._done.record(self._stream)
        self._done.synchronize()

    def settle(self) -> None:
        """Wait for all that was started on the device, on any stream."""
        _cuda.synchronize(self.device)

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record what `enqueue` starts on the stream, as a CUDA graph; the result starts it again."""
        graph = _cuda.CUDAGraph()
        with LOADING, _cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            enqueue()
        replay: Callable[[], None] = graph.replay
        return replay


def cuda_device(instance: Instance) -> torch.device:
    """The GPU of an instance of kind GPU.

    Raises:
        InferError: UNSUPPORTED where there is no such GPU.
    """
    if instance.device_id >= _cuda.device_count():
        raise unsupported(
            f"instance '{instance.name}' has kind KIND_GPU but this PyTorch has no CUDA device"
            f" {instance.device_id}; install the extra: {install_command('gpu')}"
        )
    return torch.device("cuda", instance.device_id)


def pins(optimization: mc.ModelOptimizationPolicy, name: str) -> bool:
    """Whether a kind of pinned memory is wanted; it is unless the configuration says otherwise."""
    return not optimization.HasField(name) or bool(getattr(optimization, name).enable)


def _pinned(nbytes: int) -> Array:
    return np.asarray(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy())
