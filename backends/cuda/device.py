"""The GPU of one instance, through PyTorch: a stream, copies, events and graphs."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from tritonclient.grpc import model_config_pb2 as mc

from app.core.errors import unsupported
from app.core.installed.installation import install_command
from backends.base import Instance
from backends.cuda.host_buffers import HostBuffers

Array = npt.NDArray[Any]

_cuda: Any = torch.cuda  # not typed

LOADING: Final = threading.RLock()
"""Held by an instance while it loads and records graphs: others' allocations would abort a recording."""


class CudaDevice:
    """A GPU and the stream on which one instance does everything, in order.

    Settings of `optimization` in the configuration: `input_pinned_memory` and `output_pinned_memory` make
    host memory page-locked, so that copies are asynchronous; `cuda.busy_wait_events` makes a waiting thread
    spin; `priority` is the stream's.

    Attributes:
        kind: name of the device type in frameworks.
        index: CUDA ordinal.
        inputs: page-locked memory for joined inputs; None when the configuration disables it.

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
        """Return the stream's handle (cudaStream_t)."""
        return int(self._stream.cuda_stream)

    def current(self) -> AbstractContextManager[Any]:
        """Return a context in which PyTorch uses this device and stream."""
        context: AbstractContextManager[Any] = _cuda.stream(self._stream)
        return context

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return device memory, uint8[nbytes], aligned to 256 bytes or better."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def stage(self, name: str, array: Array) -> torch.Tensor:
        """Return the bytes of an input, uint8[n], in page-locked host memory if that is enabled."""
        staged = np.ascontiguousarray(array) if self.inputs is None else self.inputs.copy_in(name, array)
        return torch.from_numpy(staged.reshape(-1).view(np.uint8))

    def upload(self, name: str, array: Array, target: torch.Tensor) -> None:
        """Start to copy an input to the beginning of device memory."""
        if array.nbytes:
            target[: array.nbytes].copy_(self.stage(name, array), non_blocking=True)

    def download(self, source: torch.Tensor) -> torch.Tensor:
        """Start to copy a tensor to new host memory, valid after `wait`.

        PyTorch caches page-locked blocks and reuses one when its last reader, a response, is freed.
        """
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=self._pins_outputs)
        return host.copy_(source, non_blocking=True)

    def wait(self) -> None:
        """Wait for all work of the stream, with the GIL released."""
        self._done.record(self._stream)
        self._done.synchronize()

    def synchronize(self) -> None:
        """Wait for all work of the device, on any stream."""
        _cuda.synchronize(self.device)

    def record(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Record the work that `enqueue` starts as a CUDA graph; return the function that replays it."""
        graph = _cuda.CUDAGraph()
        with LOADING, _cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            enqueue()
        replay: Callable[[], None] = graph.replay
        return replay


def cuda_device(instance: Instance) -> torch.device:
    """Return the GPU of an instance of kind GPU.

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
    """Whether a kind of pinned memory is enabled, which is the default."""
    return not optimization.HasField(name) or bool(getattr(optimization, name).enable)


def _pinned(nbytes: int) -> Array:
    return np.asarray(torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy())
