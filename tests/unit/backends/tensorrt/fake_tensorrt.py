"""Stands for the package `tensorrt` where there is no GPU: its objects work on memory of this process.

Only what the backend uses, under the names of TensorRT 10 and 11. An engine adds 1 to every element of X.
"""

import ctypes
from collections.abc import Sequence
from enum import Enum
from math import prod
from types import SimpleNamespace
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


class BuilderFlag(Enum):
    FP16 = 0
    INT8 = 1
    BF16 = 17


class MemoryPoolType(Enum):
    WORKSPACE = 0


class ExecutionContextAllocationStrategy(Enum):
    STATIC = 0
    ON_PROFILE_CHANGE = 1
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
) -> "ICudaEngine":
    """X[rows, width] to Y = X + 1; every further profile allows twice the rows."""
    bounds = [((low, width), (best << index, width), (high << index, width)) for index in range(profiles)]
    return ICudaEngine(
        {"X": Io(TensorIOMode.INPUT, (-1, width), bounds), "Y": Io(TensorIOMode.OUTPUT, (-1, width))}
    )


class ICudaEngine:
    """Tensors by name."""

    device_memory_size_v2 = 64

    def __init__(self, tensors: dict[str, Io]) -> None:
        self.tensors = tensors
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
        assert strategy is not ExecutionContextAllocationStrategy.STATIC
        self.contexts.append(IExecutionContext(self))
        if strategy is ExecutionContextAllocationStrategy.ON_PROFILE_CHANGE:
            self.contexts[-1].owns_memory = True
        return self.contexts[-1]


class IExecutionContext:
    """Executes over addresses, as the real one does."""

    def __init__(self, engine: ICudaEngine) -> None:
        self._engine = engine
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._memory = 0
        self.profile = 0
        self.executions = 0
        self.owns_memory = False
        self.fails = False

    def set_device_memory(self, memory: int, size: int) -> None:
        assert size >= self._engine.device_memory_size_v2 and not self.owns_memory
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
        return self._shapes["X"]

    def set_tensor_address(self, name: str, address: int) -> bool:
        self._addresses[name] = address
        return name in self._engine.tensors

    def execute_async_v3(self, stream: int) -> bool:
        if self.fails:
            return False
        assert self._memory or self.owns_memory
        self.executions += 1
        shape = self._shapes["X"]
        source = _floats(self._addresses["X"], shape)
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
    engine_host_code_allowed = False
    host_code: list[bool] = []

    def __init__(self, log: Any) -> None:
        self._log = log

    def deserialize_cuda_engine(self, data: bytes) -> ICudaEngine | None:
        Runtime.read += 1
        Runtime.cores.append(self.DLA_core)
        Runtime.host_code.append(self.engine_host_code_allowed)
        if data not in self.engines:
            severity = Severity.ERROR
            self._log.log(severity, "magicTag does not match")
        return self.engines.get(data)


__version__ = "10.13.0"


class IProgressMonitor:
    """Base class of progress monitors."""


class INetworkDefinition:
    """The inputs of the last ONNX file that was parsed."""

    def __init__(self) -> None:
        self.inputs: list[tuple[str, Shape]] = []

    @property
    def num_inputs(self) -> int:
        return len(self.inputs)

    def get_input(self, index: int) -> Any:
        name, shape = self.inputs[index]
        return SimpleNamespace(name=name, shape=shape)


class OnnxParser:
    """Reads files of lines `NAME SIZE SIZE ..`, and refuses others."""

    num_errors = 1

    def __init__(self, network: INetworkDefinition, log: Any) -> None:
        self._network = network

    def parse_from_file(self, path: str) -> bool:
        with open(path) as file:
            rows = [line.split() for line in file]
        self._network.inputs = [(name, tuple(map(int, sizes))) for name, *sizes in rows if sizes]
        return bool(self._network.inputs)

    def get_error(self, index: int) -> str:
        return "In node 0: Unsupported operator"


class IOptimizationProfile:
    """An optimization profile."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[Shape, Shape, Shape]] = {}

    def set_shape(self, name: str, low: Shape, best: Shape, high: Shape) -> None:
        self.shapes[name] = low, best, high


class ITimingCache:
    """Counts the builds that it was part of."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def serialize(self) -> bytes:
        return self.data + b"build "


class IBuilderConfig:
    """What a builder was told."""

    def __init__(self) -> None:
        self.flags: list[BuilderFlag] = []
        self.pools: dict[MemoryPoolType, int] = {}
        self.profiles: list[IOptimizationProfile] = []
        self.builder_optimization_level = 3
        self.progress_monitor: Any = None
        self._cache = ITimingCache(b"")

    def set_flag(self, flag: BuilderFlag) -> None:
        self.flags.append(flag)

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self.pools[pool] = size

    def add_optimization_profile(self, profile: IOptimizationProfile) -> int:
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, data: bytes) -> ITimingCache:
        return ITimingCache(data)

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        self._cache = cache
        return True

    def get_timing_cache(self) -> ITimingCache:
        return self._cache


class Builder:
    """Builds `add_one` for the rows of its profile; keeps what it was told."""

    builds: list[IBuilderConfig] = []
    fails = False

    def __init__(self, log: Any) -> None:
        self._log = log

    def create_network(self, flags: int) -> INetworkDefinition:
        return INetworkDefinition()

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig()

    def create_optimization_profile(self) -> IOptimizationProfile:
        return IOptimizationProfile()

    def build_serialized_network(self, network: INetworkDefinition, config: IBuilderConfig) -> bytes | None:
        Builder.builds.append(config)
        monitor = config.progress_monitor
        monitor.phase_start("Tactics", None, 2)
        assert monitor.step_complete("Tactics", 0)
        monitor.phase_finish("Tactics")
        if self.fails:
            self._log.log(Severity.ERROR, "Could not find any implementation")
            return None
        low, best, high = config.profiles[0].shapes["X"]
        data = f"built {len(Runtime.engines)}".encode()
        Runtime.engines[data] = add_one(low[0], best[0], high[0], width=high[1])
        return data


def init_libnvinfer_plugins(log: Any, namespace: str) -> bool:
    """Nothing to register."""
    return True


def _floats(address: int, shape: Shape) -> Any:
    buffer = (ctypes.c_float * max(1, prod(shape))).from_address(address)
    return np.ctypeslib.as_array(buffer)[: prod(shape)].reshape(shape)
