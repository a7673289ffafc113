"""GPU memory with the tensors of requests, which a server on the same machine opens by a CUDA IPC handle."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from importlib import import_module
from secrets import token_hex
from typing import Any, Final, cast

import numpy as np

from app.tools.perf.options import Options, PerfError
from nereid_client.pool import AsyncPool, Lease

_DEVICE: Final = 0
_ALIGNMENT: Final = 64


class CudaRegion:
    """A registered region of the first GPU, with a slot for each request. Use it as a context manager.

    Slots are filled in the host's memory, as those of an `AsyncPool`, and `upload` copies all of them once.

    Attributes:
        region: its name at the server.

    Raises:
        PerfError: from entering it: there is no GPU, no library for it, or the server refuses the region.
    """

    def __init__(self, options: Options, slots: int, slot_bytes: int) -> None:
        self._options, self._stack = options, ExitStack()
        self.slot_bytes = -(-slot_bytes // _ALIGNMENT) * _ALIGNMENT
        self.slot_type: Any = type("Slot", (ctypes.c_char * self.slot_bytes,), {})
        self.region = f"nereid-{token_hex(8)}"
        self.memory = bytearray(slots * self.slot_bytes)
        self._free = list(range(slots))

    def __enter__(self) -> CudaRegion:
        try:
            self._open()
        except PerfError:
            self._stack.close()
            raise
        except Exception as error:  # of the CUDA library, the client library or the server
            self._stack.close()
            raise PerfError(f"--shared-memory cuda: {error}") from None
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _open(self) -> None:
        from tritonclient.utils import cuda_shared_memory as cuda

        client = self._client()
        self._handle = cuda.create_shared_memory_region(self.region, len(self.memory), _DEVICE)
        self._stack.callback(cuda.destroy_shared_memory_region, self._handle)
        handle, headers = cuda.get_raw_handle(self._handle), dict(self._options.headers)
        client.register_cuda_shared_memory(self.region, handle, _DEVICE, len(self.memory), headers=headers)
        self._stack.callback(client.unregister_cuda_shared_memory, self.region, headers=headers)

    def _client(self) -> Any:
        """Return Triton's client, which knows how to register GPU memory."""
        address = self._options.address
        if address.tls is not None:
            raise PerfError("--shared-memory cuda takes no TLS: the memory is of this machine")
        triton: Any = import_module(f"tritonclient.{address.protocol}")
        client = triton.InferenceServerClient(f"{address.host}:{address.port}")
        self._stack.callback(client.close)
        return client

    def lease(self) -> Lease | None:
        """Return a free slot; None if there is none."""
        return Lease(cast(AsyncPool, self), self._free.pop()) if self._free else None

    def give_back(self, number: int) -> None:
        """Take note of a slot that is no longer used; the region is of one run."""

    def upload(self) -> None:
        """Copy what the slots hold to the GPU.

        Raises:
            PerfError: that failed.
        """
        from tritonclient.utils import cuda_shared_memory as cuda

        try:
            cuda.set_shared_memory_region(self._handle, [np.frombuffer(self.memory, np.uint8)])
        except Exception as error:
            raise PerfError(f"--shared-memory cuda: {error}") from None
