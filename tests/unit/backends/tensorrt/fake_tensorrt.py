"""Stands for the package `tensorrt` where there is no GPU: its objects work on memory of this process.

Only what the backend uses, under the names of TensorRT 10 and 11. An engine adds 1 to every element of X.
"""

import ctypes
from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


class TensorIOMode(Enum):
    INPUT = 1
    OUTPUT = 2


class TensorLocation(Enum):
    DEVICE = 0
    HOST = 1


class TensorFormat(Enum):
    LINEAR = 0
    CHW32 = 5


class DataType(Enum):
    FLOAT = 0
    HALF = 1
    INT32 = 3
    FP8 = 6


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    USER_MANAGED = 2


class ILogger:
    """Base class of loggers."""


class IOutputAllocator:
    """Base class of output allocators."""


class Io(NamedTuple):
    """One tensor of a fake engine; `bounds` are the low, best and high shapes of an input by profile."""

    mode: TensorIOMode
    shape: Shape
    bounds: Sequence[tuple[Shape, Shape, Shape]] = ()
    dtype: DataType = DataType.FLOAT
    layout: TensorFormat = TensorFormat.LINEAR
    location: TensorLocation = TensorLocation.DEVICE
    values: tuple[Shape, Shape, Shape] | None = None


def add_one(
    low: int = 1,
    best: int = 2,
    high: int = 8,
    profiles: int = 1,
    width: int = 3,
    data_dependent: bool = False,
) -> "ICudaEngine":
    """X[rows, width] to Y = X + 1; every further profile allows twice the rows."""
    bounds = [((low, width), (best << index, width), (high << index, width)) for index in range(profiles)]
    return ICudaEngine(
        {
            "X": Io(TensorIOMode.INPUT, (-1, width), bounds),
            "Y": Io(TensorIOMode.OUTPUT, (-1, width)),
        },
        data_dependent,
    )


class ICudaEngine:
    """Tensors by name."""

    device_memory_size_v2 = 64

    def __init__(self, tensors: dict[str, Io], data_dependent: bool = False) -> None:
        self.tensors = tensors
        self.data_dependent = data_dependent
        self.contexts: list[IExecutionContext] = []

    @property
    def num_io_tensors(self) -> int:
        return len(self.tensors)

    @property
    def num_optimization_profiles(self) -> int:
        return max(len(io.bounds) for io in self.tensors.values()) or 1

    def get_tensor_name(self, index: int) -> str:
        return list(self.tensors)[index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return self.tensors[name].mode

    def get_tensor_shape(self, name: str) -> Shape:
        return self.tensors[name].shape

    def get_tensor_dtype(self, name: str) -> DataType:
        return self.tensors[name].dtype

    def get_tensor_format(self, name: str) -> TensorFormat:
        return self.tensors[name].layout

    def get_tensor_location(self, name: str) -> TensorLocation:
        return self.tensors[name].location

    def is_shape_inference_io(self, name: str) -> bool:
        return self.tensors[name].values is not None

    def get_tensor_profile_shape(self, name: str, index: int) -> list[Shape]:
        return list(self.tensors[name].bounds[index])

    def get_tensor_profile_values(self, index: int, name: str) -> list[list[int]]:
        assert isinstance(index, int) and isinstance(name, str)
        return [list(values) for values in self.tensors[name].values or ()]

    def create_execution_context(self, strategy: ExecutionContextAllocationStrategy) -> "IExecutionContext":
        assert strategy is ExecutionContextAllocationStrategy.USER_MANAGED
        self.contexts.append(IExecutionContext(self))
        return self.contexts[-1]


class IExecutionContext:
    """Executes over addresses, as the real one does."""

    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._memory = 0
        self.profile = 0
        self.executions = 0
        self.fails = False

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2
        self._memory = memory

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        low, _, high = self._engine.tensors[name].bounds[self.profile]
        self._shapes[name] = shape
        return all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True))

    def infer_shapes(self) -> list[str]:
        return [name for name, io in self._engine.tensors.items() if io.bounds and name not in self._shapes]

    def get_tensor_shape(self, name: str) -> Shape:
        rows, *rest = self._shapes["X"]
        return (-1 if self._engine.data_dependent else rows, *rest)

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return name in self._engine.tensors

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def execute_async_v3(self, stream: int) -> bool:
        if self.fails:
            return False
        assert self._memory
        self.executions += 1
        shape = self._shapes["X"]
        source = _floats(self._addresses["X"], shape)
        if "Y" in self._allocators:
            # Every row whose first element is above 0: as many as the values say.
            source = source[source[:, 0] > 0]
            allocator = self._allocators["Y"]
            self._addresses["Y"] = allocator.reallocate_output_async(
                "Y", 0, max(1, source.nbytes), 256, stream
            )
            allocator.notify_shape("Y", source.shape)
        _floats(self._addresses["Y"], source.shape)[...] = source + 1
        return True


class Severity(Enum):
    ERROR = 1


class Runtime:
    """Finds engines by the bytes of their file."""

    engines: dict[bytes, ICudaEngine] = {}
    read = 0
    cores: list[int] = []
    num_DLA_cores = 2
    DLA_core = -1

    def __init__(self, log: Any) -> None:
        self._log = log

    def deserialize_cuda_engine(self, data: bytes) -> ICudaEngine | None:
        Runtime.read += 1
        Runtime.cores.append(self.DLA_core)
        if data not in self.engines:
            severity = Severity.ERROR
            self._log.log(severity, "magicTag does not match")
        return self.engines.get(data)


def init_libnvinfer_plugins(log: Any, namespace: str) -> bool:
    """Nothing to register."""
    return True


def _floats(address: int, shape: Shape) -> Any:
    buffer = (ctypes.c_float * max(1, prod(shape))).from_address(address)
    return np.ctypeslib.as_array(buffer)[: prod(shape)].reshape(shape)
