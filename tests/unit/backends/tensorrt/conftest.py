"""The tensorrt backend over stand-ins for TensorRT and the GPU."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import pytest

from tests.unit.backends.host_device import HostDevice
from tests.unit.backends.tensorrt import fake_tensorrt as trt

OF_TENSORRT = tuple(f"backends.tensorrt.{name}" for name in ("backend", "builder", "runtime"))
"""Modules that import TensorRT."""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend's module, with the stand-ins where TensorRT and the GPU would be."""
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    for name in OF_TENSORRT:
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module("backends.tensorrt.backend")
    monkeypatch.setattr(module, "CudaDevice", HostDevice)
    monkeypatch.setattr(module, "cuda_device", lambda instance: torch.device("cpu", instance.device_id))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Stand-in")
    monkeypatch.setattr(trt.Runtime, "engines", {})
    monkeypatch.setattr(trt.Runtime, "read", 0)
    monkeypatch.setattr(trt.Runtime, "cores", [])
    monkeypatch.setattr(trt.Runtime, "host_code", [])
    monkeypatch.setattr(trt.Builder, "builds", [])
    yield module
    for name in OF_TENSORRT:
        sys.modules.pop(name, None)
